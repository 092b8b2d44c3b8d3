"""Shared by the tests of a device: sizes, figures with targets, models with random weights, and configurations."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from release.benchmarks.common.endless_models import byte_tokenizer
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
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int

    @property
    def heads(self) -> tuple[int, int, int]:
        """H, H_kv, D."""
        return self.num_heads, self.num_key_value_heads, self.hidden_size // self.num_heads


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
        attention_tokens: of the tree on which kernels are timed.
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
    attention_tokens: int = 16384
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
    attention_tokens=256,
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
    name = f"qwen3-{shape.hidden_size}x{shape.num_layers}-{shape.vocab_size}-{seed}"
    return cached_folder(name, lambda folder: _make_qwen3(folder, shape, seed), work / "models")


def _make_qwen3(folder: Path, shape: Shape, seed: int) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.heads[2],
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=STD,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(), torch.device(DEVICE):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=EMBEDDING_STD)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
