"""Places the parts of a tree: time runs from left to right, a trajectory is a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rllib_arpo.record.read import Question, Trajectory

#: Pixels: the prompt's box, the box of a turn, the gap behind it with the tool's mark, the ending, a line.
PROMPT_WIDTH, TURN_WIDTH, GAP, END_WIDTH, LINE = 84, 120, 52, 250, 58
#: Of a turn's box and of the strip of an axis.
BOX_HEIGHT, AXIS_HEIGHT = 18, 24
#: Pixels of the time line: the names, the bars, a line.
NAME_WIDTH, BARS_WIDTH, TIME_LINE = 70, 900, 22
#: Marks on the axis of the time line, at least.
NUM_TICKS = 5


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


def tree_layout(question: Question) -> TreeDrawing:
    """A fork's line is below its parent's, and above those of forks from earlier turns, so that no edges cross."""
    children: dict[str | None, list[Trajectory]] = {}
    for trajectory in question.trajectories:
        children.setdefault(trajectory.row["parent"], []).append(trajectory)
    order: list[str] = []
    waiting = list(reversed(children.get(None, [])))
    while waiting:
        trajectory = waiting.pop()
        order.append(trajectory.agent_id)
        forks = children.get(trajectory.agent_id, [])
        latest_first = sorted(forks, key=lambda fork: fork.row["inherited_turns"], reverse=True)
        waiting += reversed(latest_first)
    deepest = max((trajectory.depth_at_end() for trajectory in question.trajectories), default=0)
    width = PROMPT_WIDTH + GAP + deepest * (TURN_WIDTH + GAP) + END_WIDTH
    return TreeDrawing({agent_id: line for line, agent_id in enumerate(order)}, width, len(order) * LINE)


def neighbours(question: Question, layout: TreeDrawing) -> dict[tuple[str, int], dict[str, tuple[str, int]]]:
    """(agent id, its own turn) -> key of the keyboard -> the turn to which it leads.

    Left and right follow the path and the trajectory, up and down go to the nearest turn of the line above or below.
    """
    by_id = {trajectory.agent_id: trajectory for trajectory in question.trajectories}
    in_order = [by_id[agent_id] for agent_id in layout.lines if by_id[agent_id].turns]
    found: dict[tuple[str, int], dict[str, tuple[str, int]]] = {}
    for line, trajectory in enumerate(in_order):
        for own in range(len(trajectory.turns)):
            to: dict[str, tuple[str, int] | None] = {
                "arrowleft": (trajectory.agent_id, own - 1) if own else _last_inherited(trajectory, by_id),
                "arrowright": (trajectory.agent_id, own + 1) if own + 1 < len(trajectory.turns) else None,
                "arrowup": _nearest(in_order, line - 1, trajectory.row["inherited_turns"] + own),
                "arrowdown": _nearest(in_order, line + 1, trajectory.row["inherited_turns"] + own),
            }
            found[trajectory.agent_id, own] = {key: place for key, place in to.items() if place is not None}
    return found


def _last_inherited(trajectory: Trajectory, by_id: Mapping[str, Trajectory]) -> tuple[str, int] | None:
    """The turn above a trajectory's first own one."""
    depth, parent = trajectory.row["inherited_turns"] - 1, trajectory.row["parent"]
    while parent is not None:
        owner = by_id[parent]
        if depth >= owner.row["inherited_turns"]:
            return parent, depth - owner.row["inherited_turns"]
        parent = owner.row["parent"]
    return None


def _nearest(in_order: Sequence[Trajectory], line: int, depth: int) -> tuple[str, int] | None:
    if not 0 <= line < len(in_order):
        return None
    other = in_order[line]
    return other.agent_id, min(max(depth - other.row["inherited_turns"], 0), len(other.turns) - 1)


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of the time line: the model generates (`tool` is None), or the trajectory waits for a tool. Pixels."""

    x: float
    width: float
    begin_s: float
    end_s: float
    turn: int
    tool: str | None


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Attributes:
    bars: agent id -> its bars, in the order of the tree's lines.
    ticks: (pixels, label).
    """

    bars: Mapping[str, Sequence[Bar]]
    ticks: Sequence[tuple[float, str]]


def time_line(question: Question, layout: TreeDrawing) -> TimeLine | None:
    """The times of each trajectory's generation and of its waits for tools; None if they were not measured."""
    by_id = {trajectory.agent_id: trajectory for trajectory in question.trajectories}
    spans = {agent_id: list(_spans(by_id[agent_id])) for agent_id in layout.lines}
    end = max((span[1] for own in spans.values() for span in own), default=0.0)
    if not end:
        return None
    scale = BARS_WIDTH / end
    bars = {
        agent_id: [Bar(NAME_WIDTH + scale * begin, max(scale * (stop - begin), 1.0), begin, stop, turn, tool)
                   for begin, stop, turn, tool in own]
        for agent_id, own in spans.items()
    }  # fmt: skip
    step = _step(end)
    ticks = [(NAME_WIDTH + scale * step * i, f"{step * i:g} s") for i in range(int(end / step) + 1)]
    return TimeLine(bars, ticks)


def _spans(trajectory: Trajectory) -> Iterator[tuple[float, float, int, str | None]]:
    """(begin, end, turn, tool) of what a trajectory did."""
    for turn in trajectory.turns:
        if turn["started_s"] is not None:
            yield turn["started_s"], turn["generated_s"], turn["turn"], None
            if turn["tool"] is not None and turn["answered_s"] is not None:
                yield turn["generated_s"], turn["answered_s"], turn["turn"], turn["tool"]


def _step(end: float) -> float:
    """The largest of 1, 2, 5 times a power of ten with which the axis has at least `NUM_TICKS` marks."""
    power = 1e6
    while True:
        for digit in (5, 2, 1):
            if end / (digit * power) >= NUM_TICKS - 1:
                return digit * power
        power /= 10
