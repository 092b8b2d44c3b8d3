"""ARPO on deep search, long answers with many searches, with Qwen3-8B and the authors' settings.

Starts from a cold-started Qwen3-8B: fine-tune it on tool-use transcripts first. FSDP gives each of the eight GPUs 16 of
131 GB.

    accelerate launch --num_processes 8 -m rllib_arpo cold-start --model Qwen/Qwen3-8B --data transcripts.jsonl \\
        --max-length 12000 --output qwen3 --fsdp --gradient-checkpointing --batch-size 1 --gradient-accumulation 2
    python tuned_examples/deepsearch_qwen3_8b_arpo.py --model qwen3 --data train_10k.parquet \\
        --search-backend serper --cache searches.sqlite

Like the authors' runs, it searches the web (the environment variable SERPER_API_KEY has Serper's key) and opens pages.
With `--index` instead of the back-end it searches local documents.

Hardware: 8 GPUs of 80 GB, four learners and four engines. Training holds 16 bytes a parameter (fp32 weights, gradients
and two Adam moments): 131 GB, of which FSDP2 gives each learner a quarter.

Stops at a mean reward of 0.6 per trajectory or after 156 iterations, two epochs of train_10k.
Not measured: needs 8 GPUs.
"""

import argparse

from rllib_arpo import ARPOConfig
from rllib_arpo.recipes import authors_config, gpu_recipe_parser, run_recipe

parser = gpu_recipe_parser(num_learners=4, num_env_runners=4)


def make_config(args: argparse.Namespace) -> ARPOConfig:
    config = authors_config(
        args, max_prompt_tokens=2000, max_response_tokens=10000, max_tool_calls=6, more_tools={"browse": {}}
    )
    # Six searches and 10,000 tokens take longer than a question of the reasoning task.
    return config.adaptive_rollout(question_deadline_s=1800)


if __name__ == "__main__":
    args = parser.parse_args()
    run_recipe(make_config(args), args, experiment_name="deepsearch-qwen3-8b")
