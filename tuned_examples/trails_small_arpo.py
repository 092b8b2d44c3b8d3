"""ARPO on the trails task with a model of 1.3 million parameters, which the recipe makes. Needs one CPU core.

It is `trails_smollm2_135m_arpo.py` with a small model, for studies with many seeds (release/evidence/study.py).

python -m tuned_examples.trails_small_arpo --seed 0
python -m tuned_examples.trails_small_arpo --algo GRPO
python -m tuned_examples.trails_small_arpo --form late
python -m tuned_examples.trails_small_arpo --branching random --random-fork-probability 0.3

Results on 128 held-out questions, decoded greedily; mean and standard deviation over ten seeds:

    arm                         accuracy after 24 updates   tool calls so far   accuracy after 10,000 calls
    --branch-threshold 0.505    0.948 ± 0.047               9,560               0.952 ± 0.043
    --algo GRPO                 0.924 ± 0.071               18,497              0.731 ± 0.109

They are the arms `n2-z7` and `grpo` of release/evidence/studies/shapes_small.yaml; docs/evidence.md
compares more, and finds the default ("auto") level with 0.505.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # A script finds its neighbours as well.

from rllib_arpo import ARPOConfig
from rllib_arpo.envs.tasks.trail_forms import FORMS, MAIN
from rllib_arpo.recipes import add_arm_args, arm_config, recipe_parser, run_recipe, run_terminal
from rllib_arpo.tracking.before_training import EvaluateBeforeTraining
from tuned_examples.decisive_steps import DecisiveSteps
from tuned_examples.trails_models import small_model

parser = add_arm_args(recipe_parser(stop_reward=1.0, stop_iters=24))
parser.add_argument("--form", choices=FORMS, default=MAIN.name, help="of the trails: where the model has to choose")
start = parser.add_mutually_exclusive_group()
start.add_argument("--cold-start-seed", type=int, default=0, help="of the model that the recipe makes")
start.add_argument("--start-model", metavar="FOLDER", help="starts from this model, and makes none")
parser.add_argument("--lr", type=float, default=2e-4, help="the learning rate")
parser.add_argument("--num-threads", type=int, default=1, help="CPU threads of the engine, and of the learner")


def make_model(args) -> str:
    """The folder of the model that the recipe starts from."""
    return args.start_model or small_model(form=args.form, seed=args.cold_start_seed)


def make_config(model: str, args) -> ARPOConfig:
    form = FORMS[args.form]
    return (
        arm_config(
            args,
            num_rollouts=16,
            max_response_tokens=form.max_response_tokens,
            questions_per_batch=8,
            questions_per_minibatch=4,
        )
        .environment("Trails-v0", env_config={"seed": args.seed, "form": form.name})
        .language_model(
            model_name_or_path=model,
            dtype="float32",
            max_context_tokens=form.max_context_tokens,
            engine_num_threads=args.num_threads,
        )
        .adaptive_rollout(
            max_tool_calls=form.max_tool_calls,
            max_turn_tokens=24,
            # A run can be repeated, and runs with the same seed draw the same numbers.
            deterministic=True,
        )
        .training(
            lr=args.lr,
            max_tokens_per_pass=4096,
            learner_num_threads=args.num_threads,
        )
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8)
        .evaluation(
            evaluation_interval=3,
            evaluation_duration=128,
            evaluation_config={"env_config": {"split": "test"}, "num_envs_per_env_runner": 64},
        )
        .callbacks([DecisiveSteps, EvaluateBeforeTraining])
        .debugging(seed=args.seed)
    )


if __name__ == "__main__":
    args = parser.parse_args()
    with run_terminal(args, "trails-small"):
        run_recipe(make_config(make_model(args), args), args, "trails-small")
