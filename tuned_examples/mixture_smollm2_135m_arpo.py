"""ARPO on the mixture of mathematics and knowledge that its authors train on, with a model far too small for it.

Everything is real but the size: the questions of `train_10k.parquet`, sandboxed Python, and a search that answers from
`search_cache.json` and, for other queries, from an index of that file's pages. Needs two CPU cores.

    rllib-arpo index --output pages.index search_cache.json
    python -m tuned_examples.mixture_smollm2_135m_arpo --data train_10k.parquet --cache search_cache.json \\
        --index pages.index

Both files are in the data of github.com/RUC-NLPIR/ARPO. Stops after 3 iterations: it shows that all parts work
together; a model of this size does not learn these questions. Result (one run at commit 3286017, two cores with other
work beside it, 3.7 minutes): 21 searches and 15 Python programs in 3 iterations, mean reward -1.00, -0.96, -0.96.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # A script finds its neighbours as well.

from rllib_arpo import ARPOConfig
from rllib_arpo.policy.dtypes import fast_dtype
from rllib_arpo.recipes import recipe_parser, run_recipe, run_terminal
from tuned_examples.smollm2 import smollm2_135m_instruct

parser = recipe_parser(stop_reward=1.0, stop_iters=3, algorithms=["ARPO"])
parser.add_argument("--data", required=True, help="questions: a .parquet file like the authors' train_10k.parquet")
parser.add_argument("--cache", required=True, help="known searches: a .json file {query: result}, or a .sqlite cache")
parser.add_argument("--index", required=True, help="folder that rllib-arpo index made")


def make_config(model: str, args: argparse.Namespace) -> ARPOConfig:
    return (
        ARPOConfig()
        .environment(
            "ParquetQuestions-v0",
            env_config={
                "path": args.data,
                "few_shot": 2,
                "tools": {
                    "search": {"index": args.index, "cache": args.cache, "max_result_tokens": 192},
                    "python": {"max_result_tokens": 96},
                },
            },
        )
        .language_model(
            model_name_or_path=model,
            dtype=fast_dtype(),
            max_context_tokens=2048,
            engine_num_threads=2,
        )
        .adaptive_rollout(
            num_rollouts=8,
            num_initial_rollouts=4,
            branching="probability",
            entropy_window=8,
            max_tool_calls=3,
            max_response_tokens=640,
            max_turn_tokens=128,
            temperature=0.7,  # At 1.0 this model hardly ever follows the format.
        )
        .training(
            lr=1e-5,
            questions_per_batch=6,
            questions_per_minibatch=6,
            max_tokens_per_pass=4096,
            learner_num_threads=2,
        )
        .env_runners(num_env_runners=1, num_envs_per_env_runner=6)
        .debugging(seed=0)
    )


if __name__ == "__main__":
    args = parser.parse_args()
    with run_terminal(args, "mixture"):
        run_recipe(make_config(smollm2_135m_instruct(), args), args, "mixture")
