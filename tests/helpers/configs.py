"""Small configurations for tests that run the whole algorithm."""

from rllib_arpo import ARPOConfig
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.scripted_env import ANSWER


def small_config(model: str, engine: str = "scripted", config: ARPOConfig | None = None, **engine_kwargs) -> ARPOConfig:
    """Two questions of four rollouts an iteration on "ToolMath-v0"; in one process, with the scripted engine."""
    return (
        (config or ARPOConfig())
        .environment("ToolMath-v0")
        .language_model(
            model_name_or_path=model,
            dtype="float32",
            max_context_tokens=1024,
            engine=engine,
            engine_kwargs=engine_kwargs,
        )
        .adaptive_rollout(
            num_rollouts=4, num_initial_rollouts=2, entropy_window=4, max_response_tokens=120, max_turn_tokens=24
        )
        .training(
            lr=1e-3,
            questions_per_batch=2,
            questions_per_minibatch=2,
            max_tokens_per_pass=4096,
            # A random model often earns the same reward everywhere, and there would be nothing to compute.
            skip_groups_without_signal=False,
        )
        .env_runners(num_env_runners=0, num_cpus_per_env_runner=0.5, num_envs_per_env_runner=2)
        .learners(num_learners=0, num_cpus_per_learner=0.5)
        .evaluation(evaluation_duration=3, evaluation_config={"env_config": {"split": "test"}})
        .reporting(show_progress=False)
        .debugging(seed=0, log_level="ERROR")
    )


def scripted_config(model: str) -> ARPOConfig:
    """The small configuration on `FaultyEnv`: root "0" is right, the others are wrong, so that all groups differ."""
    config = small_config(model, vocab_size=256, end_token_id=ANSWER, end_probability=0.3)
    config.environment(FaultyEnv, env_config={"rewards": {"0": 1.0}})
    return config.evaluation(evaluation_config={"env_config": {}})
