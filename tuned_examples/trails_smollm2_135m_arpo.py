"""ARPO on the trails task: six searches, of which two decide. Needs two CPU cores. `make train` runs it.

It first tunes SmolLM2-135M-Instruct on 160 transcripts of a demonstrator that keeps the format and takes the right hit
in half of the cases (once, into the cache folder). The model is then sure of each step but the decisive ones: there the
entropy rises, and there ARPO forks and learns which hit to follow. No name of the evaluation occurs in training or in
the transcripts.

    python -m tuned_examples.trails_smollm2_135m_arpo --seed 0
    python -m tuned_examples.trails_smollm2_135m_arpo --algo GRPO

Stops at a mean reward of 0.95 per trajectory or after 8 iterations. tau is a little above alpha, so that rises of less
than 0.27 nats over the window, which are noise, fork nothing. N = 2 and Z = 1 stay, since of the shapes that
release/evidence/studies/shapes_smollm2.yaml compares none is shown to be better (docs/evidence.md).
Result (seeds 0, 1, 2; two cores of an AMD EPYC with AVX-512, bf16): greedy accuracy on 64 held-out questions 0.219
before, 0.719, 0.766 and 0.844 after 4 iterations, 0.953, 1.000 and 0.984 after 8, in 3.7 minutes. docs/run.md has
the entropies.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # A script finds its neighbours as well.

from rllib_arpo import ARPOConfig
from rllib_arpo.policy.compilation import fast_dtype
from rllib_arpo.recipes import add_arm_args, arm_config, recipe_parser, run_recipe, run_terminal
from rllib_arpo.tracking.transcripts import EvaluationTranscripts
from tuned_examples.decisive_steps import DecisiveSteps
from tuned_examples.entropy_figure import draw_entropy
from tuned_examples.trails_models import cold_started_smollm2

parser = add_arm_args(recipe_parser(stop_reward=0.95, stop_iters=8))
parser.set_defaults(checkpoint_freq=2)  # For --resume; a run keeps the last two and the best, of 1.6 GB each.
parser.add_argument(
    "--entropy-figure", metavar="FOLDER", help="first draw where the cold-started model is unsure; takes a minute"
)


def make_model(args) -> str:
    """The folder of the model that the recipe starts from."""
    return cold_started_smollm2()


def make_config(model: str, args) -> ARPOConfig:
    return (
        arm_config(
            args,
            num_rollouts=8,
            num_initial_rollouts=2,
            branch_threshold=0.505,
            max_response_tokens=400,
            questions_per_batch=6,
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
        .callbacks([DecisiveSteps, EvaluationTranscripts])
        .debugging(seed=args.seed)
    )


if __name__ == "__main__":
    args = parser.parse_args()
    with run_terminal(args, "trails"):
        config = make_config(make_model(args), args)
        if args.entropy_figure:
            draw_entropy(config, "trails", args.entropy_figure)
        run_recipe(config, args, "trails")
