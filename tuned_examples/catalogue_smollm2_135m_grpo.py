"""GRPO on the catalogue task, the baseline of `catalogue_smollm2_135m_arpo.py`: the same settings without forks.

    python tuned_examples/catalogue_smollm2_135m_grpo.py

Stops at a mean reward of 1.0 per trajectory or after 10 iterations. Result: not measured.
"""

from ray.rllib.examples.utils import add_rllib_example_script_args

from rllib_arpo import GRPOConfig
from rllib_arpo.logging.console import ConsoleCallback
from rllib_arpo.logging.transcripts import EvaluationTranscripts
from rllib_arpo.models import fast_dtype, smollm2_135m_instruct
from rllib_arpo.recipes import run_recipe

parser = add_rllib_example_script_args(default_reward=1.0, default_iters=10)
parser.set_defaults(algo="GRPO", num_env_runners=1, verbose=0)


def make_config(model: str) -> GRPOConfig:
    return (
        GRPOConfig()
        .environment("Catalogue-v0")
        .language_model(
            model_name_or_path=model,
            dtype=fast_dtype(),
            max_context_tokens=1024,
            engine_num_threads=2,
        )
        .adaptive_rollout(
            num_rollouts=8,
            max_tool_calls=3,
            max_response_tokens=512,
            max_turn_tokens=64,
        )
        .training(
            lr=3e-5,
            questions_per_batch=6,
            questions_per_minibatch=6,
            max_tokens_per_pass=4096,
            loss_aggregation="token_mean",
            learner_num_threads=2,
        )
        .env_runners(num_env_runners=1, num_envs_per_env_runner=6)
        .evaluation(
            evaluation_interval=5,
            evaluation_duration=64,
            evaluation_config={"env_config": {"split": "test"}, "num_envs_per_env_runner": 32},
        )
        .callbacks([ConsoleCallback, EvaluationTranscripts])
        .debugging(seed=0)
    )


if __name__ == "__main__":
    args = parser.parse_args()
    run_recipe(make_config(smollm2_135m_instruct()), args, experiment_name="catalogue")
