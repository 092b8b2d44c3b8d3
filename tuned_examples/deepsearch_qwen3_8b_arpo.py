"""ARPO on deep search, long answers with many searches, with Qwen3-8B and the authors' settings.

Starts from a cold-started Qwen3-8B: fine-tune it on tool-use transcripts first. FSDP gives each of the eight GPUs 16 of
131 GB.

    accelerate launch --num_processes 8 -m rllib_arpo cold-start --model Qwen/Qwen3-8B --data transcripts.jsonl \\
        --max-length 12000 --output qwen3 --fsdp --gradient-checkpointing --batch-size 1 --gradient-accumulation 2
    python tuned_examples/deepsearch_qwen3_8b_arpo.py --model qwen3 --data hard_search_1k.parquet \\
        --eval-data gaia_test.parquet hle_test.parquet --search-backend serper --cache searches.sqlite \\
        --reader-url http://127.0.0.1:8000/v1 --reader-model Qwen/Qwen3-14B --output qwen3-arpo

Like the authors' runs, it searches the web (the environment variable SERPER_API_KEY has Serper's key). With `--index`
instead of the back-end it searches local documents. It also opens pages; with `--reader-url` and `--reader-model` a
language model reads them, and says what helps with the question, otherwise their text is shown. With `--judge-url` and
`--judge-model` a language model grades answers, which otherwise earn F1 over words, as the authors' do.

`--algo`, `--python-backend`, checkpoints, `--resume` and the model at the end are as in `reasoning_arpo.py`;
`authors.py` lists what differs from the authors' runs.

Hardware: 8 GPUs of 80 GB, four learners and four engines. Training holds 16 bytes a parameter (fp32 weights, gradients
and two Adam moments): 131 GB, of which FSDP2 gives each learner a quarter.

Stops at a mean reward of 0.6 per trajectory or after 40 iterations, five epochs of hard_search_1k (1,071 questions).
Not measured: needs 8 GPUs.
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

parser = add_deep_search_args(gpu_recipe_parser(num_learners=4, num_env_runners=4, stop_iters=DEEP_SEARCH_ITERATIONS))


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
