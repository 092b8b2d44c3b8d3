"""ARPO on FrozenLake without slipping, a text game, with a model of 0.37 million parameters, which the recipe makes.

A turn is a move. The model does not see the board: it reads its four neighbours, one token each. Each seed has its own
map, and no map of the evaluation occurs in training or in the demonstrations. Needs two CPU cores.

python -m tuned_examples.frozen_lake_arpo --seed 0
python -m tuned_examples.frozen_lake_arpo --algo GRPO
python -m tuned_examples.frozen_lake_arpo --path 8    # begins with eight moves without a choice: here forks pay

Results with `--num-initial-rollouts 8` on 128 held-out questions (88 different maps), greedy, at most twelve moves;
eight questions an iteration:

    seed   accuracy before   after 6   after 12   after 24   minutes
    1      0.406             0.812     0.719      0.844      2.7
    2      0.406             0.719     0.719      0.719      2.5
    3      0.406             0.719     0.719      0.844      2.7

On these questions a uniformly random player reaches 0.047, and the demonstrator 0.312. A player that goes right where
it can, otherwise down, and never into a hole that it sees, reaches 0.719. To do better, the model has to leave dead
ends.

All seeds share the cold start, which took 62 CPU seconds (3.2 minutes). A run took about 100 CPU seconds (seeds 2 and
3, without Ray's own processes). Other work with priority kept both cores busy (load 12 to 19), so an idle machine needs
fewer minutes. The settings were tuned on seed 0 only. The runs used float32 and one thread each. docs/evidence.md has
ten seeds with two optimizer steps an update.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # A script finds its neighbours as well.

from rllib_arpo import ARPOConfig
from rllib_arpo.recipes import add_arm_args, arm_config, recipe_parser, run_recipe, run_terminal
from rllib_arpo.tracking.before_training import EvaluateBeforeTraining
from tuned_examples.frozen_lake import MAX_MOVES, MOVES, lake_model

parser = add_arm_args(recipe_parser(stop_reward=1.0, stop_iters=24))
parser.add_argument(
    "--path", type=int, choices=range(17), metavar="0-16", default=0,
    help="the length of a path to the lake, on which there is nothing to choose",
)  # fmt: skip
parser.add_argument(
    "--evaluation-samples", type=int, choices=range(65), metavar="0-64", default=0,
    help="how many trajectories are sampled for a question; 0: one, decoded greedily",
)  # fmt: skip
parser.add_argument("--lr", type=float, default=4e-4, help="the learning rate")
parser.add_argument("--num-threads", type=int, default=1, help="CPU threads of the engine, and of the learner")


def make_model(args) -> str:
    """The folder of the model that the recipe starts from."""
    return lake_model(path=args.path)


def make_config(model: str, args) -> ARPOConfig:
    options = {"read": list(MOVES), "show": "tuned_examples.frozen_lake:show", "instruction": ""}
    if args.path:
        options["path"] = args.path
    world = {"tuned_examples.frozen_lake:Lake": options}
    return (
        arm_config(
            args,
            num_rollouts=16,
            max_response_tokens=320,
            questions_per_batch=8,
        )
        .environment("ToolEnv-v0", env_config={"world": world, "seed": args.seed, "num_seeds": 4096})
        .language_model(
            model_name_or_path=model, dtype="float32", max_context_tokens=384, engine_num_threads=args.num_threads
        )
        .adaptive_rollout(
            max_tool_calls=MAX_MOVES + args.path,
            max_turn_tokens=4,
            # A run can be repeated, and runs with the same seed draw the same numbers.
            deterministic=True,
        )
        .training(lr=args.lr, max_tokens_per_pass=4096, learner_num_threads=args.num_threads)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8)
        .evaluation(
            evaluation_interval=3,
            evaluation_duration=128,
            evaluation_config={
                "env_config": {"split": "test", "num_test_questions": 128},
                "num_envs_per_env_runner": 64,
                **({"explore": True, "num_rollouts": args.evaluation_samples} if args.evaluation_samples else {}),
            },
        )
        .callbacks([EvaluateBeforeTraining])
        .debugging(seed=args.seed)
    )


if __name__ == "__main__":
    args = parser.parse_args()
    with run_terminal(args, "frozen-lake"):
        run_recipe(make_config(make_model(args), args), args, "frozen-lake")
