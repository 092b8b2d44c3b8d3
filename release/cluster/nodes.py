"""The table of docs/cluster.md: how many GPUs of 80 GB a model and a context need, by the doctor's arithmetic."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rllib_arpo import ARPOConfig
from rllib_arpo.doctor.budget import Run, budget_checks, decide, read_run
from rllib_arpo.doctor.checks import Mark, Memory
from rllib_arpo.engine.memory import engine_need
from rllib_arpo.learner.run_shapes import engine_shape, learner_shape
from rllib_arpo.recipes.gpus import engine_memory

GPU_GB = 80.0
#: The numbers of learners that are tried, and of the GPUs of one engine, which are on one machine.
NUMBERS = (1, 2, 4, 8, 16, 32, 64)
PARALLEL = (1, 2, 4, 8)
#: The trajectories of the greatest length for which an engine's cache must have room at a time.
TRAJECTORIES = 4
CONTEXTS = (8192, 16384, 32768)
_QWEN3 = {"vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 40960}
#: The sizes of published models, by the name of their family in transformers.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-4B": ("qwen3", _QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
                                    "num_attention_heads": 32, "tie_word_embeddings": True}),
    "Qwen3-8B": ("qwen3", _QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
                                    "num_attention_heads": 32, "tie_word_embeddings": False}),
    "Qwen3-14B": ("qwen3", _QWEN3 | {"hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40,
                                     "num_attention_heads": 40, "tie_word_embeddings": False}),
    "Qwen3-30B-A3B": ("qwen3_moe", _QWEN3 | {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
                                             "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128,
                                             "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                                             "tie_word_embeddings": False}),
    "Qwen3-32B": ("qwen3", _QWEN3 | {"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
                                     "num_attention_heads": 64, "tie_word_embeddings": False}),
}  # fmt: skip


def table() -> list[str]:
    """The lines of the table, in Markdown."""
    heads = " | ".join(f"{context:,} tokens" for context in CONTEXTS)
    return [f"| model | {heads} |", "|---|" + "---|" * len(CONTEXTS), *map(_row, MODELS)]


def _row(name: str) -> str:
    family, sizes = MODELS[name]
    architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]]
    with tempfile.TemporaryDirectory() as folder:
        AutoConfig.for_model(family, architectures=architectures, **sizes).save_pretrained(folder)
        run = read_run(ARPOConfig().language_model(model_name_or_path=folder))
    cells = [f"{_shared(run, context)} ({_apart(run, context)})" for context in CONTEXTS]
    return f"| {name} | {' | '.join(cells)} |"


def _shared(run: Run, context: int) -> str:
    """The GPUs of a run in which each has a learner and an engine; "no" if no number of them is enough."""
    return next((str(number) for number in NUMBERS if fits(shared(run, context, number))), "no")


def _apart(run: Run, context: int) -> str:
    """The GPUs of the learners, and those of one engine; "no" if no number of them is enough."""
    sums = ((learners, parallel) for learners in NUMBERS for parallel in PARALLEL)
    return next((f"{a} + {b}" for a, b in sums if fits(apart(run, context, a, b))), "no")


def shared(run: Run, context: int, number: int) -> Run:
    """The run on this number of GPUs, as the recipes for eight GPUs divide them."""
    config = ARPOConfig().learners(num_learners=number, num_gpus_per_learner=0.1)
    config.env_runners(num_env_runners=number, num_gpus_per_env_runner=0.9)
    engine = {"gpu_memory_utilization": engine_memory(0.9, shared=True)}
    return _run(run, config.language_model(engine_kwargs=engine, sleep_level=2), context)


def apart(run: Run, context: int, learners: int, parallel: int) -> Run:
    """The run with one GPU for each learner, and `parallel` others for an engine."""
    config = ARPOConfig().learners(num_learners=learners, num_gpus_per_learner=1)
    config.env_runners(num_env_runners=1, num_gpus_per_env_runner=parallel)
    engine = {"gpu_memory_utilization": engine_memory(1.0, shared=False), "tensor_parallel_size": parallel}
    return _run(run, config.language_model(engine_kwargs=engine), context)


def _run(run: Run, config: ARPOConfig, context: int) -> Run:
    config.language_model(max_context_tokens=context).training(sharding="fsdp2", max_tokens_per_pass=context)
    return replace(run, learner=learner_shape(config), engine=engine_shape(config))


def fits(run: Run) -> bool:
    """Whether the doctor finds no fault with a run whose engines have room for some trajectories at a time."""
    memory = Memory(gpus=(), host=10**15, object_store=0)
    checks = budget_checks(decide(run, memory, GPU_GB), memory, GPU_GB)
    room = engine_need(run.model, run.engine, int(GPU_GB * 1e9)).trajectories >= TRAJECTORIES
    return room and all(check.mark is Mark.OK for check in checks)
