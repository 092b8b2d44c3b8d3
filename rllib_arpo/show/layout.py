"""Places the parts of a tree: time runs from left to right, a trajectory is a line."""

from collections.abc import Mapping
from dataclasses import dataclass

from rllib_arpo.core.figures import longest_path
from rllib_arpo.core.tree import QuestionTree, Trajectory

#: Pixels: the prompt's box, the box of a turn, the gap behind it with the tool's mark, the ending, a line.
PROMPT_WIDTH, TURN_WIDTH, GAP, END_WIDTH, LINE = 84, 120, 52, 250, 58
#: Of a turn's box.
BOX_HEIGHT = 18


@dataclass(frozen=True, slots=True)
class TreeDrawing:
    """Attributes:
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
    children: dict[str | None, list[Trajectory]] = {}
    for trajectory in tree.trajectories:
        children.setdefault(trajectory.parent, []).append(trajectory)
    order: list[str] = []
    waiting = list(reversed(children.get(None, [])))
    while waiting:
        trajectory = waiting.pop()
        order.append(trajectory.agent_id)
        forks = children.get(trajectory.agent_id, [])
        latest_first = sorted(forks, key=lambda fork: fork.num_inherited_turns, reverse=True)
        waiting += reversed(latest_first)
    width = PROMPT_WIDTH + GAP + longest_path(tree) * (TURN_WIDTH + GAP) + END_WIDTH
    return TreeDrawing({agent_id: line for line, agent_id in enumerate(order)}, width, len(order) * LINE)
