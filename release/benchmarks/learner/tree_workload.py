"""Makes synthetic rollouts for the learner: a question whose trajectories share a given ratio of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from release.benchmarks.common.endless_models import NUM_BYTE_TOKENS
from rllib_arpo.core.tree import QuestionTree, StopReason, ToolCall, ToolStatus, Trajectory, Turn

#: Number of turns of each root. A tool answers after each turn except a trajectory's last.
ROOTS = (4, 4, 2, 2)
#: (parent, turns that the fork inherits, all turns on its path). The second fork is below the first.
FORKS = (("0", 1, 3), ("0.0", 2, 4), ("1", 2, 3), ("2", 1, 3))
NUM_TRAJECTORIES = len(ROOTS) + len(FORKS)
#: Average length of a tool response / average length of a turn.
TOOL_SHARE = 0.6
REWARDS = (-1.0, 0.0, 1.0, 1.1)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A trajectory without tokens yet: lengths of its own turns and of the tool responses after them."""

    agent_id: str
    parent: str | None
    num_inherited_turns: int
    lengths: np.ndarray


def make_question(ratio: float, unique_tokens: int, seed: int = 0) -> QuestionTree:
    """A question of 8 trajectories of 2 to 4 turns (3.1 on average).

    Turns have random lengths, from half to one and a half times the mean. Half of the trajectories are forks, and the
    prompt is as long as the ratio needs. At ratio 1 there are no forks, and the prompt has a single token.

    Args:
        ratio: sum of the trajectories' lengths / unique tokens; 1, or at least 1.5, since forks share almost that.
        unique_tokens: the approximate number of tokens of the tree.
        seed: the seed of lengths and tokens.
    """
    rng = np.random.default_rng([seed, round(1000 * ratio)])
    shapes = _shapes(rng, with_forks=ratio > 1)
    unique, flat = _totals(shapes)
    # The prompt p and the scale s of the turns: p + unique s = unique_tokens, M p + flat s = ratio * unique_tokens.
    scale = (NUM_TRAJECTORIES - ratio) * unique_tokens / (NUM_TRAJECTORIES * unique - flat)
    shapes = [_scaled(shape, scale) for shape in shapes]
    unique, flat = _totals(shapes)
    num_prompt = round((ratio * unique - flat) / (NUM_TRAJECTORIES - ratio))
    prompt = rng.integers(NUM_BYTE_TOKENS, size=max(1, num_prompt), dtype=np.int32)
    trajectories = [_trajectory(rng, shape, REWARDS[i % len(REWARDS)]) for i, shape in enumerate(shapes)]
    return QuestionTree("q", prompt, tuple(trajectories))


def _shapes(rng: np.random.Generator, *, with_forks: bool) -> list[_Shape]:
    """Shapes with parents first and mean lengths 1 and `TOOL_SHARE`. Without forks the paths have the same turns."""
    forks = FORKS if with_forks else ()
    roots = ROOTS if with_forks else (*ROOTS, *(turns for _, _, turns in FORKS))
    shapes = [_Shape(str(i), None, 0, _lengths(rng, turns)) for i, turns in enumerate(roots)]
    for parent, inherited, turns in forks:
        rank = sum(shape.parent == parent for shape in shapes)
        shapes.append(_Shape(f"{parent}.{rank}", parent, inherited, _lengths(rng, turns - inherited)))
    return shapes


def _lengths(rng: np.random.Generator, num_turns: int) -> np.ndarray:
    """[n, 2]: the lengths of each turn and of the tool response after it, which the last turn does not have."""
    lengths = rng.uniform(0.5, 1.5, (num_turns, 2)) * [1.0, TOOL_SHARE]
    lengths[-1, 1] = 0
    return lengths


def _scaled(shape: _Shape, scale: float) -> _Shape:
    """The shape with lengths in whole tokens."""
    lengths = np.maximum(np.rint(scale * shape.lengths), shape.lengths > 0).astype(np.int64)
    return _Shape(shape.agent_id, shape.parent, shape.num_inherited_turns, lengths)


def _totals(shapes: list[_Shape]) -> tuple[float, float]:
    """(unique, flat): the total length of all own turns, and of the turns on all paths."""
    paths: dict[str | None, np.ndarray] = {None: np.zeros((0, 2))}
    for shape in shapes:
        paths[shape.agent_id] = np.concatenate([paths[shape.parent][: shape.num_inherited_turns], shape.lengths])
    return sum(shape.lengths.sum() for shape in shapes), sum(path.sum() for path in paths.values())


def _trajectory(rng: np.random.Generator, shape: _Shape, reward: float) -> Trajectory:
    turns = [_turn(rng, int(generated), int(observed)) for generated, observed in shape.lengths]
    return Trajectory(
        agent_id=shape.agent_id,
        turns=(*turns[:-1], replace(turns[-1], reward=reward)),
        stop_reason=StopReason.ANSWER,
        parent=shape.parent,
        num_inherited_turns=shape.num_inherited_turns,
    )


def _turn(rng: np.random.Generator, generated: int, observed: int) -> Turn:
    return Turn(
        token_ids=rng.integers(NUM_BYTE_TOKENS, size=generated, dtype=np.int32),
        log_probs=np.zeros(generated, np.float32),
        entropies=np.zeros(0, np.float32),
        observation=rng.integers(NUM_BYTE_TOKENS, size=observed, dtype=np.int32),
        weight_versions=np.zeros(generated, np.int32),
        tool_call=ToolCall("tool", ToolStatus.OK, 0.0) if observed else None,
    )
