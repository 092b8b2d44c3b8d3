"""ARPO on mathematical and knowledge-intensive questions with Qwen2.5-7B and the authors' settings.

Starts from a cold-started Qwen2.5-7B-Instruct: fine-tune it on tool-use transcripts first.

    python -m rllib_arpo.cold_start --model Qwen/Qwen2.5-7B-Instruct --data transcripts.jsonl --output qwen7b
    python tuned_examples/reasoning_qwen2_5_7b_arpo.py --model qwen7b --data train_10k.parquet --index wiki.index

Hardware: 8 GPUs of 80 GB, four learners and four engines. Training holds 16 bytes a parameter (fp32 weights, gradients
and two Adam moments): 122 GB, of which FSDP2 gives each learner a quarter.

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
    run_recipe(make_config(args), args, experiment_name="reasoning-qwen2.5-7b")
