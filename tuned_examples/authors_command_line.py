"""The command line of the recipes with the authors' settings, for GPUs and parquet data."""

from __future__ import annotations

import argparse
import os

from rllib_arpo.envs.sandbox.backends import BACKENDS
from rllib_arpo.recipes import add_arm_args, recipe_parser

STOP_REWARD = 0.6
#: The authors save, and evaluate, every five iterations.
CHECKPOINT_FREQUENCY = 5
#: `--python-backend`: the local back-end without its sandbox.
UNSAFE = "unsafe"


def gpu_recipe_parser(num_learners: int, num_env_runners: int, stop_iters: int) -> argparse.ArgumentParser:
    """The arguments of a recipe on parquet data; each learner and each env runner gets one GPU.

    Args:
        num_learners, num_env_runners: defaults.
        stop_iters: the default of --stop-iters.
    """
    parser = recipe_parser(
        STOP_REWARD, stop_iters, num_learners=num_learners, num_env_runners=num_env_runners,
        num_envs_per_env_runner=32, num_gpus_per_learner=1.0, max_failures=3, checkpoint_freq=CHECKPOINT_FREQUENCY,
    )  # fmt: skip
    _add_questions(parser)
    parser.add_argument(
        "--num-gpus-per-env-runner",
        type=float,
        default=1.0,
        help="a fraction shares the GPU; of several, the engine takes each a part of the model",
    )
    parser.add_argument("--max-response-tokens", type=int, help="of a trajectory; default: the recipe's")
    return add_arm_args(parser)


def add_deep_search_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the language models that help: one that judges answers, and one that reads pages."""
    for who, does in (("judge", "grades answers, instead of F1"), ("reader", "reads the pages that `browse` opens")):
        group = parser.add_argument_group(who, f"a language model behind an OpenAI-compatible endpoint that {does}")
        group.add_argument(f"--{who}-url", help="of the endpoint, up to and with /v1; OPENAI_API_KEY has its key")
        group.add_argument(f"--{who}-model", help="its name there")
        group.add_argument(f"--{who}-cache", type=os.path.abspath, help="a sqlite file that keeps its replies")
    return parser


def chat_model(args: argparse.Namespace, who: str) -> dict[str, str] | None:
    """The language model that `add_deep_search_args` calls `who`: fields of a `ChatClient`; None: none was named.

    Raises:
        ValueError: it has no address or no name.
    """
    url, model, cache = (getattr(args, f"{who}_{name}") for name in ("url", "model", "cache"))
    if not (url and model):
        if given := [f"--{who}-{name}" for name in ("url", "model", "cache") if getattr(args, f"{who}_{name}")]:
            raise ValueError(f"{given[0]}: needs --{who}-url and --{who}-model.")
        return None
    return {"base_url": url, "model": model, **({"cache_path": cache} if cache else {})}


def _add_questions(parser: argparse.ArgumentParser) -> None:
    # Paths are made absolute, since Tune runs a trial in a directory of its own.
    path = os.path.abspath
    parser.add_argument(
        "--model", type=_model_path, required=True, help="folder of the cold-started model (rllib-arpo cold-start)"
    )
    parser.add_argument("--data", type=path, required=True, help="questions: a .parquet file in the authors' layout")
    parser.add_argument(
        "--eval-data", type=path, nargs="+", help="held-out questions in the same layout, asked at every checkpoint"
    )
    parser.add_argument("--index", type=path, help="what `search` searches: a folder of rllib-arpo index")
    parser.add_argument("--search-backend", default="local", help="or the web: searxng, brave, serper or tavily")
    parser.add_argument("--search-url", help="server of the web back-end, where it has no public one (searxng)")
    parser.add_argument(
        "--cache", type=path, help="known searches: a .json file {query: result}, or a .sqlite file that grows"
    )
    parser.add_argument(
        "--python-backend",
        choices=(*BACKENDS, UNSAFE),
        default="local",
        help="where programs run: in bubblewrap, which needs user namespaces (local), on a server (sandbox_fusion, "
        "with --python-url), or with all rights of this user (unsafe)",
    )
    parser.add_argument("--python-url", help="the server of --python-backend sandbox_fusion")


def _model_path(name: str) -> str:
    """A folder's absolute path; other names are ids of the Hugging Face hub."""
    return os.path.abspath(name) if os.path.isdir(name) else name
