"""ARPO on mathematical and knowledge-intensive questions with the authors' settings, for models from 3B to 8B.

Starts from a cold-started model: fine-tune one of those below on tool-use transcripts first; `--model` decides which is
trained. All have the same settings. They differ in the GPUs and in the memory that training needs:

    model                               GPUs          training
    Qwen/Qwen2.5-3B-Instruct            8 of 40 GB     49 GB
    Qwen/Qwen2.5-7B-Instruct            8 of 80 GB    122 GB
    meta-llama/Llama-3.1-8B-Instruct    8 of 80 GB    128 GB

    rllib-arpo cold-start --model Qwen/Qwen2.5-3B-Instruct --data transcripts.jsonl --output qwen3b \\
        --gradient-checkpointing --batch-size 1 --gradient-accumulation 16
    python tuned_examples/reasoning_arpo.py --model qwen3b --data train_10k.parquet --index wiki.index

The cold start of the 3B model needs one GPU of 80 GB. Those of 7B and 8B need several GPUs (`accelerate launch
--num_processes 8 -m rllib_arpo cold-start --fsdp ...`) or a LoRA (`--lora-rank 64`).

Hardware: 8 GPUs of the size above, four learners and four engines. Training holds 16 bytes a parameter (fp32 weights,
gradients and two Adam moments), of which FSDP2 gives each learner a quarter. The 3B model also fits on one GPU of
80 GB, which engine and learner share (slow; for trying things out):

    --num-learners 0 --num-gpus-per-learner 0.75 --num-env-runners 1 --num-gpus-per-env-runner 0.25

Stops at a mean reward of 0.6 per trajectory or after 156 iterations, two epochs of train_10k.
Not measured: needs 8 GPUs.
"""

import argparse
from pathlib import Path

from rllib_arpo import ARPOConfig
from rllib_arpo.recipes import authors_config, gpu_recipe_parser, run_recipe

parser = gpu_recipe_parser(num_learners=4, num_env_runners=4)


def make_config(args: argparse.Namespace) -> ARPOConfig:
    return authors_config(args, max_prompt_tokens=1536, max_response_tokens=4096, max_tool_calls=3)


if __name__ == "__main__":
    args = parser.parse_args()
    run_recipe(make_config(args), args, experiment_name=f"reasoning-{Path(args.model).name}")
