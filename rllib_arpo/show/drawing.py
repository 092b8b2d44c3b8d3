"""Where the parts of a tree are drawn, and in which shade a token's entropy appears."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from rllib_arpo.core.figures import longest_path
from rllib_arpo.core.tree import QuestionTree, Trajectory, Turn
from rllib_arpo.record.question import TurnText

#: Pixels: the prompt's box, the box of a turn, the gap behind it with the tool's mark, the ending, a line.
PROMPT_WIDTH, TURN_WIDTH, GAP, END_WIDTH, LINE = 84, 120, 52, 250, 58
#: Of a turn's box.
BOX_HEIGHT = 18
#: Nats: a token has shade i if i of these are not above its entropy. They are the same on every page.
EDGES = (0.05, 0.2, 0.5, 0.9, 1.4, 2.0, 3.0)
#: Parts of a turn's strip, at most.
MAX_PARTS = 24


@dataclass(frozen=True, slots=True)
class TreeDrawing:
    """The drawing of a tree: time runs from left to right, a trajectory is a line.

    Attributes:
        lines: agent id -> the number of its line from above.
        width, height: of the whole drawing.
    """

    lines: Mapping[str, int]
    width: int
    height: int

    def y(self, agent_id: str) -> int:
        """The middle of a trajectory's boxes."""
        return self.lines[agent_id] * LINE + LINE // 2

    def x(self, depth: int) -> int:
        """The left edge of the box of a turn."""
        return PROMPT_WIDTH + GAP + depth * (TURN_WIDTH + GAP)


def tree_layout(tree: QuestionTree) -> TreeDrawing:
    """A fork's line is below its parent's, and above those of forks from earlier turns, so that no edges cross."""
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
    """A part of a text. `entropy` is None where nothing was recorded, and for text without a shade."""

    text: str
    shade: int = 0
    entropy: float | None = None


@dataclass(frozen=True, slots=True)
class StripPart:
    """A part of the strip: from `begin` to `end`, in [0, 1] of the turn's tokens."""

    begin: float
    end: float
    shade: int


def shade(entropy: float) -> int:
    return bisect_right(EDGES, entropy)


def text_parts(turn: Turn, decoded: TurnText) -> list[TextPart]:
    """The text of a turn, a part for every token that has a shade; all other text in as few parts as possible."""
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
    """The mean entropies along a turn; what was not recorded has no part."""
    entropies = turn.entropies.tolist()
    total, count = len(turn.token_ids), len(entropies)
    parts = min(count, max(1, round(MAX_PARTS * count / total))) if count else 0
    edges = [round(i * count / parts) for i in range(parts + 1)] if parts else []
    return [
        StripPart(begin / total, end / total, shade(sum(entropies[begin:end]) / (end - begin)))
        for begin, end in pairwise(edges)
    ]
