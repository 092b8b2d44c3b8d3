"""All sizes of the check: those of a run on a GPU, and the tiny ones that test it on a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen2 with tied embeddings and random weights."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class UpdateSizes:
    """Attributes: `sharing`: sums of the trajectories' lengths / unique tokens, at which trees are compared."""

    num_questions: int
    question_tokens: int
    tokens_per_pass: int
    sharing: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RolloutSizes:
    """`num_questions` x `num_trajectories` sequences at once; each is one turn."""

    num_questions: int
    num_trajectories: int
    prompt_tokens: int
    turn_tokens: int


@dataclass(frozen=True, slots=True)
class TrainingSizes:
    """Trajectories have `num_turns` turns of at most `turn_tokens` tokens."""

    num_iterations: int
    num_questions: int
    num_trajectories: int
    num_turns: int
    turn_tokens: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of all parts.

    Attributes:
        judges_speed: whether targets of speed count.
        is_tiny: of models and recipes that other benchmarks make.
        small, large: models.
        kv_cache_bytes: of each engine.
        products: n of the [n, n] products, the fastest of which is the peak.
        repeats: of each timing; one more comes first and does not count.
        attention_tokens: of the tree on which kernels are timed.
        probe_sequences, probe_tokens: generated for the comparison with transformers.
    """

    judges_speed: bool
    is_tiny: bool
    small: Shape
    large: Shape
    kv_cache_bytes: int
    products: tuple[int, ...]
    repeats: int
    attention_tokens: int
    probe_sequences: int
    probe_tokens: int
    update: UpdateSizes
    rollout: RolloutSizes
    training: TrainingSizes


#: The shape of Qwen2.5-0.5B.
SMALL = Shape(896, 24, 14, 2, 4864, 151936)
#: The shape of Qwen2.5-1.5B.
LARGE = Shape(1536, 28, 12, 2, 8960, 151936)
FULL = Sizes(
    judges_speed=True,
    is_tiny=False,
    small=SMALL,
    large=LARGE,
    kv_cache_bytes=4 << 30,
    products=(4096, 8192, 16384),
    repeats=5,
    attention_tokens=16384,
    probe_sequences=32,
    probe_tokens=64,
    update=UpdateSizes(num_questions=16, question_tokens=2048, tokens_per_pass=8192, sharing=(1.0, 2.5, 5.0)),
    rollout=RolloutSizes(num_questions=16, num_trajectories=16, prompt_tokens=256, turn_tokens=256),
    training=TrainingSizes(num_iterations=3, num_questions=16, num_trajectories=16, num_turns=3, turn_tokens=128),
)
_TINY_SHAPE = Shape(64, 2, 2, 1, 128, 300)
TINY = Sizes(
    judges_speed=False,
    is_tiny=True,
    small=_TINY_SHAPE,
    large=_TINY_SHAPE,
    kv_cache_bytes=16 << 20,
    products=(64,),
    repeats=1,
    attention_tokens=256,
    probe_sequences=2,
    probe_tokens=8,
    update=UpdateSizes(num_questions=2, question_tokens=96, tokens_per_pass=128, sharing=(2.5,)),
    rollout=RolloutSizes(num_questions=2, num_trajectories=2, prompt_tokens=16, turn_tokens=8),
    training=TrainingSizes(num_iterations=2, num_questions=2, num_trajectories=4, num_turns=2, turn_tokens=6),
)
