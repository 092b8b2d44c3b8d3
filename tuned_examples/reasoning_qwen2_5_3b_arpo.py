"""ARPO on mathematical and knowledge-intensive questions with Qwen2.5-3B and the authors' settings.

Starts from a cold-started Qwen2.5-3B-Instruct: fine-tune it on tool-use transcripts first.

    python -m rllib_arpo.cold_start --model Qwen/Qwen2.5-3B-Instruct --data transcripts.jsonl --output qwen3b
    python tuned_examples/reasoning_qwen2_5_3b_arpo.py --model qwen3b --data train_10k.parquet --index wiki.index

Hardware: 8 GPUs of 40 GB, four learners and four engines. Training holds 16 bytes a parameter (fp32 weights, gradients
and two Adam moments): 49 GB, of which FSDP2 gives each learner a quarter. On one GPU of 80 GB
engine and learner share it (slow; for trying things out):

    --num-learners 0 --num-gpus-per-learner 0.75 --num-env-runners 1 --num-gpus-per-env-runner 0.25

Stops at a mean reward of 0.6 per trajectory or after 156 iterations, two epochs of train_10k.
Result: not measured, needs 8 GPUs.
"""

import argparse

from rllib_arpo import ARPOConfig
from rllib_arpo.recipes import authors_config, gpu_recipe_parser, run_recipe

parser = gpu_recipe_parser(num_learners=4, num_env_runners=4)


def make_config(args: argparse.Namespace) -> ARPOConfig:
    return authors_config(args, max_prompt_tokens=1536, max_response_tokens=4096, max_tool_calls=3)


if __name__ == "__main__":
    args = parser.parse_args()
    run_recipe(make_config(args), args, experiment_name="reasoning-qwen2.5-3b")
