"""The settings of ARPO's authors, for models up to 9B, and the command line of the recipes that use them.

The settings come from the scripts in github.com/RUC-NLPIR/ARPO (a95cd08). These are all differences; "they" are the
authors, "we" is this package.

The tree
  - We take the entropy over the whole vocabulary, at the tokens after the tool's response. They take it over the ten
    likeliest tokens, in the segment that ends with the tool call.
  - We keep a baseline for every root. They keep it by place in the batch, and never clear it.
  - Our fork keeps the baseline of its root. Theirs takes its own first segment.
  - We decide about nodes as they arrive. They work in lock step, one turn of all questions after another.
The reward
  - We give the bonus for a tool only if it ran. They look for its closing tag in the text.
  - We compare mathematics exactly in reasoning. They use F1 over words.
  - We count F1 only for answers with more than half of the words right.
The tools
  - We cut the ten results of a search at 2,500 tokens together. They cut each at 1,000 characters, and ask Bing.
  - We give a program 5 seconds, 512 tokens of output and a sandbox. They give it 120 seconds, any output, no sandbox.
  - We can open pages in deep search (`browse`). They do so only in their evaluation.
The update
  - We correct for the engine's numerics token by token (`importance_cap`). They compute the log-probs of the old policy
    with the learner.
  - We take the mean over the tokens of a minibatch. They take it over each pass and GPU, and then over these means.
  - We accept a prompt that is too long, with a shorter response. Such a prompt ends their run.
The run
  - Five epochs of deep search are 40 updates of 128 questions, and two epochs of reasoning are 156. They leave out the
    rest of each epoch; we fill the batch with questions of the next epoch.
  - We also stop at the mean reward `--stop-reward`.
  - We keep the last two checkpoints and the best one. They keep all.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.branching import PAPER_THRESHOLD
from rllib_arpo.envs.sandbox.backends import BACKENDS
from rllib_arpo.options.tables import OPTIONS
from rllib_arpo.recipes import add_arm_args, arm_config, recipe_parser
from rllib_arpo.recipes.gpus import engine_memory

#: The authors' two epochs of train_10k.parquet: iterations of 128 questions, without the last 16 of the 10,000.
REASONING_ITERATIONS = 2 * (10_000 // 128)
#: Their five epochs of hard_search_1k.parquet, without the last 47 of the 1,071.
DEEP_SEARCH_ITERATIONS = 5 * (1_071 // 128)
#: N = 8, M = 16, and the number of questions in an update and in an optimizer step.
NUM_INITIAL_ROLLOUTS, NUM_ROLLOUTS = 8, 16
QUESTIONS_PER_BATCH, QUESTIONS_PER_MINIBATCH = 128, 16
SETTINGS: Mapping[str, Any] = {
    "branching": "probability",
    "branch_base_probability": 0.5,
    "branch_entropy_weight": 0.2,
    "num_initial_rollouts": NUM_INITIAL_ROLLOUTS,
    "branch_width": 1,
    "entropy_window": 20,
    "entropy_normalization": "sum_log_vocab",
    "temperature": 1.0,
    "lr": 1e-6,
    "loss_aggregation": "token_mean",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "dual_clip": 3.0,
    "kl_coeff": 0.0,
    "adam_betas": (0.9, 0.999),
    "weight_decay": 0.01,
}
#: Ten results of 1,000 characters.
SEARCH = {"top_k": 10, "max_result_tokens": 2500}
#: The number of held-out questions of an evaluation, at most. Both of the authors' files for deep search fit.
MAX_EVALUATED = 203
STOP_REWARD = 0.6
#: The authors save and evaluate every five iterations.
CHECKPOINT_FREQUENCY = 5
#: The recipes need one node with as many GPUs.
NUM_GPUS = 8
#: The value of `--python-backend` for the local back-end without its sandbox.
UNSAFE = "unsafe"


def gpu_recipe_parser(stop_iters: int) -> argparse.ArgumentParser:
    """The command line of a recipe on parquet data; eight GPUs have a learner and an engine each.

    Args:
        stop_iters: the default of --stop-iters.
    """
    parser = recipe_parser(
        STOP_REWARD, stop_iters, num_learners=NUM_GPUS, num_env_runners=NUM_GPUS, num_envs_per_env_runner=32,
        num_gpus_per_learner=0.1, max_failures=3, checkpoint_freq=CHECKPOINT_FREQUENCY,
    )  # fmt: skip
    _add_questions(parser)
    parser.add_argument(
        "--num-gpus-per-env-runner",
        type=float,
        default=0.9,
        help="a fraction shares the GPU; on several GPUs each holds a part of the model (default: 0.9)",
    )
    parser.add_argument("--max-response-tokens", type=int, help="of a trajectory; default: the recipe's")
    parser.add_argument(
        "--no-thinking", action="store_true", help="no thoughts before calls and answers, for Qwen3 and Qwen3.5"
    )
    group = parser.add_argument_group("memory", "`rllib-arpo doctor` shows what each of these changes")
    group.add_argument(
        "--lora", type=int, metavar="RANK", help="trains an adapter of all linear layers, at ten times the rate"
    )
    group.add_argument("--optimizer-offload", action="store_true", help=OPTIONS["optimizer_offload"].doc)
    group.add_argument("--max-tokens-per-pass", type=int, help=OPTIONS["max_tokens_per_pass"].doc)
    group.add_argument("--kv-cache-dtype", help='of the engine; "fp8" holds twice as many tokens as "auto"')
    group.add_argument(
        "--gpu-memory-utilization", type=float, help="the engine's part of the whole GPU; default: nearly its share"
    )
    return add_arm_args(parser)


def add_deep_search_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the language models that help: one that judges answers, and one that reads pages."""
    for who, does in (("judge", "grades answers instead of F1"), ("reader", "reads the pages that `browse` opens")):
        group = parser.add_argument_group(who, f"a language model behind an OpenAI-compatible endpoint that {does}")
        group.add_argument(f"--{who}-url", help="the endpoint's address, up to /v1; OPENAI_API_KEY has its key")
        group.add_argument(f"--{who}-model", help="the name of the model there")
        group.add_argument(f"--{who}-cache", help="a sqlite file that keeps its replies")
    return parser


def chat_model(args: argparse.Namespace, who: str) -> dict[str, str] | None:
    """The language model that `add_deep_search_args` calls `who`, as fields of a `ChatClient`; None if none is named.

    Raises:
        ValueError: the address or the name is missing.
    """
    url, model, cache = (getattr(args, f"{who}_{name}") for name in ("url", "model", "cache"))
    if not (url and model):
        if given := [f"--{who}-{name}" for name in ("url", "model", "cache") if getattr(args, f"{who}_{name}")]:
            raise ValueError(f"{given[0]}: needs --{who}-url and --{who}-model.")
        return None
    return {"base_url": url, "model": model, **({"cache_path": cache} if cache else {})}


def _add_questions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="folder of the cold-started model (rllib-arpo cold-start)")
    parser.add_argument("--data", required=True, help="questions: a .parquet file in the authors' layout")
    parser.add_argument(
        "--eval-data", nargs="+", help="held-out questions in the same layout, asked at every checkpoint"
    )
    parser.add_argument("--index", help="the folder of rllib-arpo index that `search` searches")
    parser.add_argument("--search-backend", default="local", help="local, offline, or serper for the web")
    parser.add_argument("--search-url", help="a server with Serper's API")
    parser.add_argument("--cache", help="known searches: a .json file {query: result}, or a .sqlite file that grows")
    parser.add_argument(
        "--python-backend",
        choices=(*BACKENDS, UNSAFE),
        default="local",
        help="where programs run: in bubblewrap, which needs user namespaces (local), on a server (sandbox_fusion, "
        "with --python-url), or with all rights of this user (unsafe)",
    )
    parser.add_argument("--python-url", help="the server of --python-backend sandbox_fusion")


def authors_config(
    model: str,
    args: argparse.Namespace,
    *,
    task: str,
    max_prompt_tokens: int,
    max_response_tokens: int,
    max_tool_calls: int,
    more_tools: Mapping[str, Mapping[str, Any]] | None = None,
) -> ARPOConfig:
    """The authors' settings; an algorithm other than ARPO keeps the settings of its own.

    Args:
        model: the folder of the model that is trained.
        args: of a `gpu_recipe_parser`.
        task: decides how the data set is read and how answers are compared ("arpo_mix", "arpo_deepsearch").
        max_prompt_tokens, max_response_tokens, max_tool_calls: of a trajectory; each of the authors' tasks has its own.
        more_tools: tools beside `search` and `python`.

    Raises:
        ValueError: options of the command line contradict each other; the message names them.
    """
    max_response_tokens = args.max_response_tokens or max_response_tokens
    tools = {"search": {**SEARCH, **_search_options(args)}, "python": _python_options(args), **(more_tools or {})}
    config = arm_config(
        args,
        num_rollouts=NUM_ROLLOUTS,
        branch_threshold=PAPER_THRESHOLD,  # Of `--branching threshold`, which the authors do not use.
        max_response_tokens=max_response_tokens,
        questions_per_batch=QUESTIONS_PER_BATCH,
        questions_per_minibatch=QUESTIONS_PER_MINIBATCH,
        settings=SETTINGS,
    )
    if config.questions_per_minibatch >= config.questions_per_batch and config.num_epochs == 1:
        config.training(dual_clip=None)  # A single step clips nothing.
    questions = {"task": task, "path": args.data, "tools": tools, "protocol": "tags_with_thought"}
    if args.no_thinking:
        questions |= {"protocol": "tags", "chat_template_kwargs": {"enable_thinking": False}}
    config.environment("ToolEnv-v0", env_config=questions)
    config.language_model(model_name_or_path=model, max_context_tokens=max_prompt_tokens + max_response_tokens)
    # Row 5274 of the authors' 10,000 questions has no answer.
    config.adaptive_rollout(max_tool_calls=max_tool_calls, on_bad_row="skip")
    _place(config, args)
    config.training(optimizer_offload=args.optimizer_offload)
    if args.max_tokens_per_pass is not None:
        config.training(max_tokens_per_pass=args.max_tokens_per_pass)
    if args.lora is not None:
        config.language_model(lora={"r": args.lora, "lora_alpha": 2 * args.lora, "target_modules": "all-linear"})
        config.training(lr=10 * config.lr)
    if args.eval_data:
        config.evaluation(
            evaluation_interval=args.checkpoint_freq,
            evaluation_duration=MAX_EVALUATED,
            evaluation_config={"env_config": {"path": args.eval_data, "split": "test"}},
        )
    return config.debugging(seed=args.seed)


def _place(config: ARPOConfig, args: argparse.Namespace) -> None:
    """Sets the learners, the env runners, and the share of its GPUs that an engine may use."""
    gpus = args.num_gpus_per_env_runner if args.num_env_runners else 0.0
    if not args.num_env_runners and args.num_gpus_per_learner:
        raise ValueError(
            "--num-env-runners 0: the engine would be in the learner's process; to share its GPU say "
            "--num-env-runners 1 and fractions of --num-gpus-per-learner and --num-gpus-per-env-runner."
        )
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"--num-gpus-per-env-runner {gpus:g}: must be a whole number, or less than 1.")
    shared = 0 < gpus < 1 and 0 < args.num_gpus_per_learner < 1
    engine: dict[str, Any] = {"gpu_memory_utilization": engine_memory(min(1.0, gpus), shared)} if gpus else {}
    if gpus > 1:
        engine["tensor_parallel_size"] = int(gpus)
    given = {"gpu_memory_utilization": args.gpu_memory_utilization, "kv_cache_dtype": args.kv_cache_dtype}
    engine |= {name: value for name, value in given.items() if value is not None}
    # During an update the learner has the whole GPU. Level 2 drops the weights, because new ones follow.
    config.language_model(engine_kwargs=engine, sleep_level=2 if shared else 0)
    config.training(sharding="fsdp2" if args.num_learners > 1 else "none")
    config.env_runners(
        num_env_runners=args.num_env_runners,
        num_gpus_per_env_runner=gpus,
        num_envs_per_env_runner=args.num_envs_per_env_runner,
    )
    config.learners(num_learners=args.num_learners, num_gpus_per_learner=args.num_gpus_per_learner)


def _search_options(args: argparse.Namespace) -> dict[str, str]:
    """The options of the search tool that the command line sets."""
    options = {"backend": args.search_backend, "index": args.index, "base_url": args.search_url, "cache": args.cache}
    return {key: value for key, value in options.items() if value is not None}


def _python_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of the python tool that the command line sets."""
    if args.python_url is not None and args.python_backend != "sandbox_fusion":
        raise ValueError(f"--python-url {args.python_url}: belongs to --python-backend sandbox_fusion.")
    if args.python_backend == UNSAFE:
        return {"unsafe": True}
    options = {} if args.python_backend == "local" else {"backend": args.python_backend}
    return options if args.python_url is None else {**options, "backend_options": {"url": args.python_url}}
