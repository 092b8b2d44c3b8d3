"""Trains a model in the environment: python train.py --model Qwen/Qwen2.5-0.5B-Instruct

With --scripted an engine without a model calls the tools at random: mistakes in tools and rewards show in a minute.
"""

import json
from pathlib import Path

from rllib_arpo import ARPOConfig
from rllib_arpo.policy.compilation import fast_dtype
from rllib_arpo.recipes import add_arm_args, arm_config, recipe_parser, run_recipe, run_terminal
from rllib_arpo.tracking.before_training import EvaluateBeforeTraining

parser = add_arm_args(recipe_parser(stop_reward=1.0, stop_iters=20))
parser.add_argument("--model", required=True, help="its folder, or its id on the Hugging Face hub")
parser.add_argument("--lr", type=float, default=1e-6, help="the learning rate")
parser.add_argument("--scripted", action="store_true", help="call the tools at random, without sampling from the model")


def make_model(args) -> str:
    return args.model


def make_config(model: str, args) -> ARPOConfig:
    env_config = json.loads(Path(__file__).with_name("env.json").read_text())
    return (
        arm_config(
            args,
            num_rollouts=8,
            max_response_tokens=1024,
            questions_per_batch=4,
            settings={"record_share": 1.0},
        )
        .environment("ToolEnv-v0", env_config=env_config)
        .language_model(
            model_name_or_path=model,
            dtype=fast_dtype(),
            max_context_tokens=2048,
            engine_num_threads=2,
            engine="scripted" if args.scripted else "vllm",
        )
        .adaptive_rollout(max_tool_calls=12, max_turn_tokens=96)
        .training(lr=args.lr, learner_num_threads=2)
        .env_runners(num_env_runners=0)
        .evaluation(evaluation_interval=2, evaluation_duration=5, evaluation_config={"env_config": {"split": "test"}})
        .callbacks([EvaluateBeforeTraining])
        .debugging(seed=args.seed)
    )


if __name__ == "__main__":
    args = parser.parse_args()
    with run_terminal(args, "till"):
        run_recipe(make_config(make_model(args), args), args, "till")
