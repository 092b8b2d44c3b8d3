"""Computes where a page draws the parts of a tree, and the shade for a token's entropy."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from rllib_arpo.core.figures import longest_path
from rllib_arpo.core.tree import QuestionTree, Trajectory, Turn
from rllib_arpo.record.question import TurnText

#: Pixels: the prompt's box, a turn's box, the gap behind it with the tool's mark, the ending, a line.
PROMPT_WIDTH, TURN_WIDTH, GAP, END_WIDTH, LINE = 84, 120, 52, 250, 58
#: Pixels of a turn's box.
BOX_HEIGHT = 18
#: Nats: a token's shade is the number of edges that its entropy reaches. All pages have the same edges.
EDGES = (0.05, 0.2, 0.5, 0.9, 1.4, 2.0, 3.0)
#: A turn's strip has at most this many parts.
MAX_PARTS = 24


@dataclass(frozen=True, slots=True)
class TreeDrawing:
    """The layout of a tree: time runs from left to right, and each trajectory has a line.

    Attributes:
        lines: agent id -> the number of its line, from the top.
        width, height: the size of the whole drawing.
    """

    lines: Mapping[str, int]
    width: int
    height: int

    def y(self, agent_id: str) -> int:
        """The middle of a trajectory's boxes."""
        return self.lines[agent_id] * LINE + LINE // 2

    def x(self, depth: int) -> int:
        """The left edge of a turn's box."""
        return PROMPT_WIDTH + GAP + depth * (TURN_WIDTH + GAP)


def tree_layout(tree: QuestionTree) -> TreeDrawing:
    """Puts a fork's line below its parent's and above forks from earlier turns, so no edges cross."""
    order: list[str] = []

    def draw(trajectory: Trajectory) -> None:
        order.append(trajectory.agent_id)
        forks = [fork for fork in tree.trajectories if fork.parent == trajectory.agent_id]
        for fork in sorted(forks, key=lambda fork: fork.num_inherited_turns, reverse=True):
            draw(fork)

    for root in tree.trajectories:
        if root.parent is None:
            draw(root)
    width = PROMPT_WIDTH + GAP + longest_path(tree) * (TURN_WIDTH + GAP) + END_WIDTH
    return TreeDrawing({agent_id: line for line, agent_id in enumerate(order)}, width, len(order) * LINE)


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a text. `entropy` is None for text without a shade or without a recorded entropy."""

    text: str
    shade: int = 0
    entropy: float | None = None


@dataclass(frozen=True, slots=True)
class StripPart:
    """A part of the strip, from `begin` to `end`, as shares of the turn's tokens."""

    begin: float
    end: float
    shade: int


def shade(entropy: float) -> int:
    return bisect_right(EDGES, entropy)


def text_parts(turn: Turn, decoded: TurnText) -> list[TextPart]:
    """The text of a turn: each token with a shade is a part; the text between them is one part."""
    text, ends = decoded.text, decoded.token_ends
    if text is None:
        return [TextPart(" ".join(map(str, turn.token_ids)))]
    if ends is None:
        return [TextPart(text)]
    found, plain = [], 0
    for begin, end, entropy in zip([0, *ends], ends, turn.entropies.tolist(), strict=False):
        if end > begin and shade(entropy):
            if begin > plain:
                found.append(TextPart(text[plain:begin]))
            found.append(TextPart(text[begin:end], shade(entropy), entropy))
            plain = end
    if plain < len(text):
        found.append(TextPart(text[plain:]))
    return found


def strip(turn: Turn) -> list[StripPart]:
    """The mean entropies along a turn; tokens without a recorded entropy have no part."""
    entropies = turn.entropies.tolist()
    total, count = len(turn.token_ids), len(entropies)
    parts = min(count, max(1, round(MAX_PARTS * count / total))) if count else 0
    edges = [round(i * count / parts) for i in range(parts + 1)] if parts else []
    return [
        StripPart(begin / total, end / total, shade(sum(entropies[begin:end]) / (end - begin)))
        for begin, end in pairwise(edges)
    ]
