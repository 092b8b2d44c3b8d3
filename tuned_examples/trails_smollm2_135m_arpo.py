"""ARPO on the trails task: six searches; at two of them the model has to choose. `make train` runs it on two CPU cores.

The recipe first tunes SmolLM2-135M-Instruct, once, on 160 transcripts of a demonstrator that keeps the format and takes
the right hit half of the time. The tuned model is sure of every step except where it has to choose. There its entropy
rises, and ARPO forks and learns which hit to follow. No name of the evaluation occurs in training or in the
transcripts.

    python -m tuned_examples.trails_smollm2_135m_arpo --seed 0
    python -m tuned_examples.trails_smollm2_135m_arpo --algo GRPO

A run stops at a mean reward of 0.95 per trajectory or after 8 iterations. The recipe keeps Z = 1, since with the
default "wide" (Z = 3) two runs of seed 0 ended at 0.922 and 0.797. docs/run.md has results and entropies.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # A script finds its neighbours as well.

from rllib_arpo import ARPOConfig
from rllib_arpo.policy.compilation import fast_dtype
from rllib_arpo.recipes import add_arm_args, arm_config, recipe_parser, run_recipe, run_terminal
from rllib_arpo.tracking.before_training import EvaluateBeforeTraining
from tuned_examples.decisive_steps import DecisiveSteps
from tuned_examples.trails_models import cold_started_smollm2

parser = add_arm_args(recipe_parser(stop_reward=0.95, stop_iters=8))
parser.set_defaults(checkpoint_freq=2)  # For --resume. A run keeps two checkpoints and the best, of 1.6 GB each.


def make_model(args) -> str:
    """The folder of the model that the recipe starts from."""
    return cold_started_smollm2()


def make_config(model: str, args) -> ARPOConfig:
    return (
        arm_config(
            args,
            num_rollouts=8,
            max_response_tokens=400,
            questions_per_batch=6,
            # Few questions are asked: the pages show all of them.
            settings={"branch_width": 1, "record_share": 1.0},
        )
        .environment("Trails-v0", env_config={"seed": args.seed})
        .language_model(
            model_name_or_path=model,
            dtype=fast_dtype(),
            max_context_tokens=512,
            engine_num_threads=2,
        )
        .adaptive_rollout(
            max_tool_calls=7,
            max_turn_tokens=32,
        )
        .training(
            lr=4e-5,
            max_tokens_per_pass=4096,
            learner_num_threads=2,
        )
        .env_runners(num_env_runners=1, num_envs_per_env_runner=6)
        .evaluation(
            evaluation_interval=4,
            evaluation_duration=64,
            evaluation_config={"env_config": {"split": "test"}, "num_envs_per_env_runner": 32},
        )
        .callbacks([DecisiveSteps, EvaluateBeforeTraining])
        .debugging(seed=args.seed)
    )


if __name__ == "__main__":
    args = parser.parse_args()
    with run_terminal(args, "trails"):
        run_recipe(make_config(make_model(args), args), args, "trails")
