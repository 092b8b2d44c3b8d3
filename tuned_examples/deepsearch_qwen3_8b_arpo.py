"""ARPO on deep search, where an answer takes many searches, with Qwen3-8B and the authors' settings.

Training starts from a cold-started Qwen3-8B: first fine-tune it on tool-use transcripts. FSDP puts 16 of the 131 GB on
each of the eight GPUs.

    accelerate launch --num_processes 8 -m rllib_arpo cold-start --model Qwen/Qwen3-8B --data transcripts.jsonl \\
        --max-length 12000 --output qwen3 --fsdp --gradient-checkpointing --batch-size 1 --gradient-accumulation 2
    python tuned_examples/deepsearch_qwen3_8b_arpo.py --model qwen3 --data hard_search_1k.parquet \\
        --eval-data gaia_test.parquet hle_test.parquet --search-backend serper --cache searches.sqlite \\
        --reader-url http://127.0.0.1:8000/v1 --reader-model Qwen/Qwen3-14B --output qwen3-arpo

Like the authors' runs, the model searches the web (put Serper's key into the environment variable SERPER_API_KEY). With
`--index` in place of the back-end it searches local documents. It also opens pages. With `--reader-url` and
`--reader-model` a language model reads them and says what helps with the question; otherwise the model sees their text.
With `--judge-url` and `--judge-model` a language model grades the answers; otherwise they earn F1 over words, as the
authors' answers do.

`--algo`, `--python-backend`, checkpoints, `--resume` and the model at the end work as in `reasoning_arpo.py`, and
`authors.py` lists the differences to the authors' runs.

Hardware: 8 GPUs of 80 GB. Learners and engines share them as in `reasoning_arpo.py`, which also names separate GPUs.

A run stops at a mean reward of 0.6 per trajectory or after 40 iterations, which are five epochs of hard_search_1k
(1,071 questions). Nobody has measured this recipe: it needs 8 GPUs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # A script finds its neighbours as well.

from rllib_arpo import ARPOConfig
from rllib_arpo.recipes import run_recipe, run_terminal
from tuned_examples.authors import (
    DEEP_SEARCH_ITERATIONS,
    add_deep_search_args,
    authors_config,
    chat_model,
    gpu_recipe_parser,
)

parser = add_deep_search_args(gpu_recipe_parser(stop_iters=DEEP_SEARCH_ITERATIONS))
# A GPU's KV cache has room for 33 trajectories of 7,000 tokens (`rllib-arpo doctor`), some of which wait for a tool.
parser.set_defaults(num_envs_per_env_runner=3)


def make_model(args) -> str:
    return args.model


def make_config(model: str, args) -> ARPOConfig:
    judge, reader = chat_model(args, "judge"), chat_model(args, "reader")
    config = authors_config(
        model,
        args,
        task="arpo_deepsearch",
        max_prompt_tokens=2000,
        max_response_tokens=10000,
        max_tool_calls=6,
        more_tools={"browse": {"summary_model": reader} if reader else {}},
    )
    if judge:
        config.environment(env_config={"qa_metric": "judge", "judge": judge})
    # Six searches and 10,000 tokens take longer than a question of the reasoning task.
    return config.adaptive_rollout(question_deadline_s=1800)


if __name__ == "__main__":
    args = parser.parse_args()
    experiment = f"deepsearch-{Path(args.model).name}"
    with run_terminal(args, experiment):
        run_recipe(make_config(make_model(args), args), args, experiment, save_model=True)
