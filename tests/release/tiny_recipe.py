"""A recipe with the scripted engine: seconds instead of minutes. The model's folder is in `TINY_MODEL`."""

import os

from rllib_arpo import ARPOConfig
from rllib_arpo.recipes import add_arm_args, arm_config, recipe_parser
from rllib_arpo.tracking.before_training import EvaluateBeforeTraining

parser = add_arm_args(recipe_parser(stop_reward=1.0, stop_iters=1))
parser.add_argument("--lr", type=float, default=1e-3)


def make_model(args) -> str:
    return os.environ["TINY_MODEL"]


def make_config(model: str, args) -> ARPOConfig:
    return (
        arm_config(
            args,
            num_rollouts=4,
            max_response_tokens=120,
            questions_per_batch=2,
        )
        .environment("ToolMath-v0")
        .language_model(model_name_or_path=model, dtype="float32", max_context_tokens=1024, engine="scripted")
        .adaptive_rollout(entropy_window=4, max_turn_tokens=24, deterministic=True)
        .training(lr=args.lr, max_tokens_per_pass=4096, skip_groups_without_signal=False)
        .env_runners(num_env_runners=0, num_cpus_per_env_runner=0.5, num_envs_per_env_runner=2)
        .learners(num_learners=0, num_cpus_per_learner=0.5)
        .evaluation(evaluation_interval=1, evaluation_duration=3, evaluation_config={"env_config": {"split": "test"}})
        .callbacks([EvaluateBeforeTraining])
        .reporting(show_progress=False)
        .debugging(seed=args.seed, log_level="ERROR")
    )
