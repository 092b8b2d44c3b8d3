"""Shared by the tests of a device: sizes, figures with targets, models with random weights, and configurations."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from release.benchmarks.common.endless_models import random_model
from release.benchmarks.learner.tree_workload import make_question
from rllib_arpo import ARPOConfig
from rllib_arpo.core.tree import QuestionTree
from tests.gpu.flops import matmul_peaks
from tests.helpers.configs import small_config
from tuned_examples.smollm2 import cached_folder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = "bfloat16"
CONTEXT_TOKENS = 1024
#: Of a GPU's memory, at most, so that two engines, or an engine and a learner, have room on one.
SHARE = 0.4
#: Standard deviation of the matrices, and of the embedding, which is the head as well: its logits then differ by some
#: nats, as those of trained models do. With 0.02 all words would be equally likely, and no probe would see an error.
STD, EMBEDDING_STD = 0.02, 0.1


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3 with tied embeddings and random weights."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int

    @property
    def heads(self) -> tuple[int, int, int]:
        """H, H_kv, D."""
        return self.num_attention_heads, self.num_key_value_heads, self.hidden_size // self.num_attention_heads


@dataclass(frozen=True, slots=True)
class Sizes:
    """Those of a run on a GPU, or the tiny ones that test the tests on a CPU.

    Attributes:
        is_tiny: targets of speed do not count.
        small, large: models; as large as Qwen2.5-0.5B and 1.5B. Transformers would give a folder of a Qwen2 Qwen's own
            kind of tokenizer, with a token that ends sequences.
        kv_cache_bytes: of each engine.
        products: n of the [n, n] products, the fastest of which is the peak.
        repeats: of each timing; one more comes first and does not count.
        probe_sequences, probe_tokens: generated for the comparison with transformers.
        update_questions, update_tokens: of an update that is timed; the tokens are of one question.
        tokens_per_pass: of such updates; whole questions fill a pass.
        sharing: sums of the trajectories' lengths / unique tokens of such updates.
        questions, trajectories: of a rollout and of an iteration; each trajectory of the rollout is one turn.
        prompt_tokens, turn_tokens: of the rollout.
        iterations, turns, train_turn_tokens: of the training.
    """

    is_tiny: bool = False
    small: Shape = Shape(896, 24, 14, 2, 4864, 151936)
    large: Shape = Shape(1536, 28, 12, 2, 8960, 151936)
    kv_cache_bytes: int = 4 << 30
    products: tuple[int, ...] = (4096, 8192, 16384)
    repeats: int = 3
    probe_sequences: int = 32
    probe_tokens: int = 64
    update_questions: int = 16
    update_tokens: int = 2036
    tokens_per_pass: tuple[int, ...] = (8192, 16384)
    sharing: tuple[float, ...] = (2.5, 5.0, 1.0)
    questions: int = 16
    trajectories: int = 16
    prompt_tokens: int = 256
    turn_tokens: int = 256
    iterations: int = 3
    turns: int = 3
    train_turn_tokens: int = 128

    def peaks(self) -> dict[int, float]:
        """FLOP/s of bf16 products of two square matrices, by their size; the best is what MFU is a share of."""
        return matmul_peaks(torch.bfloat16, self.products, repeats=10, device=DEVICE)

    def update_trees(self, sharing: float) -> list[QuestionTree]:
        return [make_question(sharing, self.update_tokens, seed) for seed in range(self.update_questions)]

    def engine_kwargs(self) -> dict[str, Any]:
        """vLLM's arguments; the size of the KV cache is fixed, so that both sides of a comparison have the same."""
        share = {"gpu_memory_utilization": SHARE} if DEVICE == "cuda" else {}
        return {"kv_cache_memory_bytes": self.kv_cache_bytes, **share}

    def config(self, folder: str) -> ARPOConfig:
        """Trees with tool calls, forks and rewards that differ; two optimizer steps an iteration; devices are open."""
        config = small_config(folder, "vllm", **self.engine_kwargs())
        config.environment("Parity-v0", env_config={"num_turns": self.turns})
        config.language_model(dtype=DTYPE, max_context_tokens=CONTEXT_TOKENS)
        config.adaptive_rollout(
            num_rollouts=self.trajectories,
            num_initial_rollouts=self.trajectories // 2,
            branching="always",
            max_turn_tokens=self.train_turn_tokens,
            max_response_tokens=CONTEXT_TOKENS,
        )
        config.env_runners(num_envs_per_env_runner=self.questions)
        return config.training(lr=1e-5, questions_per_batch=self.questions, questions_per_minibatch=self.questions // 2)


FULL = Sizes()
_TINY_SHAPE = Shape(64, 2, 2, 1, 128, 300)
TINY = Sizes(
    is_tiny=True,
    small=_TINY_SHAPE,
    large=_TINY_SHAPE,
    kv_cache_bytes=16 << 20,
    products=(64,),
    repeats=1,
    probe_sequences=2,
    probe_tokens=8,
    update_questions=2,
    update_tokens=60,
    tokens_per_pass=(128,),
    sharing=(2.5,),
    questions=2,
    trajectories=4,
    prompt_tokens=16,
    turn_tokens=8,
    iterations=2,
    turns=2,
    train_turn_tokens=6,
)
SIZES = TINY if os.environ.get("GPU_CHECK") == "tiny" else FULL


def tell(**entry: object) -> None:
    """Adds a line to the report, if GPU_CHECK_REPORT names one; it stays there however this process ends."""
    if report := os.environ.get("GPU_CHECK_REPORT"):
        with open(report, "a") as lines:
            lines.write(json.dumps(entry, default=float) + "\n")


@dataclass
class Figures:
    """What a test measures; each figure is printed and goes to the report at once.

    Attributes:
        test: its name.
        judges_speed: whether targets of speed count.
        missed: the targets that were missed; the test fails by them at its end.
    """

    test: str
    judges_speed: bool
    missed: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        value: float | str,
        unit: str = "",
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        is_speed: bool = False,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """A figure; NaN misses every target.

        Args:
            at_least, at_most: the target, one of them at most.
            is_speed: whether the target is about speed, which says nothing about a tiny model on a CPU.
            detail: raw measurements and sizes.
        """
        target = f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}" if at_most is not None else ""
        row = {"value": value, "unit": unit, "target": target, "detail": detail or {}}
        print(name, row)
        tell(test=self.test, figure=name, **row)
        reached = not target or (value >= at_least if at_least is not None else value <= at_most)
        if not reached and (self.judges_speed or not is_speed):
            self.missed.append(f"{name}: {value:g}, not {target}")


def random_qwen3(shape: Shape, work: Path, seed: int = 0) -> str:
    """The folder of a random model in bfloat16, below `work`, where it is made once; no token ends its sequences."""
    name = f"qwen3-{shape.hidden_size}x{shape.num_hidden_layers}-{shape.vocab_size}-{seed}"
    make = partial(
        random_model,
        architecture="qwen3",
        dtype=DTYPE,
        device=DEVICE,
        seed=seed,
        head_dim=shape.heads[2],
        initializer_range=STD,
        embedding_std=EMBEDDING_STD,
        **asdict(shape),
    )
    return cached_folder(name, make, work / "models")
