"""Trains a model in the environment: python train.py --model Qwen/Qwen2.5-0.5B-Instruct

With --scripted an engine that writes random tokens takes the model's place: mistakes show in seconds.
"""

import argparse
import json
from pathlib import Path

from ray import tune
from transformers import AutoTokenizer

from rllib_arpo import ARPOConfig


def make_config(model: str, scripted: bool = False) -> ARPOConfig:
    env_config = json.loads(Path("env.json").read_text())
    env_config["path"] = str(Path(env_config["path"]).resolve())  # Trials run in folders of their own.
    held_out = {"env_config": {**env_config, "split": "test"}}
    config = (
        ARPOConfig()
        .environment("ToolEnv-v0", env_config=env_config)
        .language_model(model_name_or_path=model, max_context_tokens=2048)
        .adaptive_rollout(num_rollouts=8, num_initial_rollouts=4, max_tool_calls=12, max_response_tokens=1024)
        .training(questions_per_batch=8, questions_per_minibatch=8)
        .evaluation(evaluation_interval=5, evaluation_duration=5, evaluation_config=held_out)
        .reporting(record_share=1.0)
    )
    if scripted:
        words = {"vocab_size": len(AutoTokenizer.from_pretrained(model))}
        config.language_model(engine="scripted", engine_kwargs=words)
        config.env_runners(num_env_runners=0).learners(num_learners=0)
    return config


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--scripted", action="store_true")
    args = parser.parse_args()
    tune.run("ARPO", config=make_config(args.model, args.scripted), stop={"training_iteration": args.iterations})
