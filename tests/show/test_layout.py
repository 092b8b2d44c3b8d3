"""The places of a tree's parts, the targets of keys, the shades of tokens."""

from rllib_arpo.record.read import Question, Trajectory
from rllib_arpo.show.layout import neighbours, time_line, tree_layout
from rllib_arpo.show.shades import StripPart, TextPart, strip, text_parts


def trajectory(agent_id: str, turns: int, inherited: int = 0, begin: float = 0.0) -> Trajectory:
    """A turn generates for a second, and then a tool runs for half a second; the last turn calls none."""
    rows = tuple(
        {"turn": i, "depth": inherited + i, "started_s": begin + 1.5 * i, "generated_s": begin + 1.5 * i + 1,
         "answered_s": begin + 1.5 * i + 1.5, "tool": "search" if i + 1 < turns else None}
        for i in range(turns)
    )  # fmt: skip
    parent = agent_id.rpartition(".")[0] or None
    return Trajectory({"agent_id": agent_id, "parent": parent, "inherited_turns": inherited}, rows)


#: "0" has four turns; "0.0" leaves after the first, "0.1" and "0.2" after the third, "0.0.0" after the first as well.
FORKED = Question(
    {},
    (
        trajectory("0", 4),
        trajectory("0.0", 1, 1, 2.0),
        trajectory("0.0.0", 2, 1, 2.0),
        trajectory("0.1", 1, 3),
        trajectory("0.2", 0, 3),
        trajectory("1", 1),
    ),
    {},
)


def test_forks_from_later_turns_are_nearer_to_their_parent():
    layout = tree_layout(FORKED)
    assert list(layout.lines) == ["0", "0.1", "0.2", "0.0", "0.0.0", "1"]
    assert (layout.x(0), layout.x(1) - layout.x(0), layout.y("0.1") - layout.y("0")) == (136, 172, 58)
    assert (layout.width, layout.height) == (136 + 4 * 172 + 250, 6 * 58)


def test_the_keys_follow_the_path_and_the_lines():
    keys = neighbours(FORKED, tree_layout(FORKED))
    assert keys["0", 0] == {"arrowright": ("0", 1), "arrowdown": ("0.1", 0)}
    assert keys["0", 3] == {"arrowleft": ("0", 2), "arrowdown": ("0.1", 0)}
    # "0.2" has no turn of its own, so the line below "0.1" is that of "0.0".
    assert keys["0.1", 0] == {"arrowleft": ("0", 2), "arrowup": ("0", 3), "arrowdown": ("0.0", 0)}
    # A fork from a turn that its parent has inherited.
    assert keys["0.0.0", 0]["arrowleft"] == ("0", 0)
    assert keys["1", 0] == {"arrowup": ("0.0.0", 0)}


def test_the_time_line_says_who_waited_for_what():
    found = time_line(FORKED, tree_layout(FORKED))
    bars = {agent: [(bar.begin_s, bar.end_s, bar.turn, bar.tool) for bar in own] for agent, own in found.bars.items()}
    assert bars["0"][:3] == [(0.0, 1.0, 0, None), (1.0, 1.5, 0, "search"), (1.5, 2.5, 1, None)]
    assert bars["0.0.0"] == [(2.0, 3.0, 0, None), (3.0, 3.5, 0, "search"), (3.5, 4.5, 1, None)]
    assert bars["0.2"] == []
    assert [label for _, label in found.ticks] == ["0 s", "1 s", "2 s", "3 s", "4 s", "5 s"]
    # The last second is that of the last turn of "0", which ends at 5.5 s.
    assert found.ticks[5][0] == 70 + 900 * 5 / 5.5


def test_without_times_there_is_no_time_line():
    none = dict.fromkeys(("started_s", "generated_s", "answered_s", "tool"))
    unmeasured = Question({}, (Trajectory(FORKED.trajectories[-1].row, ({"turn": 0, **none},)),), {})
    assert time_line(unmeasured, tree_layout(unmeasured)) is None


def test_tokens_with_entropy_are_parts_of_their_own():
    turn = {"text": "ab cd!", "token_ids": [1, 2, 3, 4], "token_ends": [2, 3, 5, 6], "entropies": [0.01, 0.3, 4.0]}
    assert text_parts(turn) == [TextPart("ab"), TextPart(" ", 2, 0.3), TextPart("cd", 7, 4.0), TextPart("!")]
    assert text_parts(turn | {"token_ends": None}) == [TextPart("ab cd!")]
    assert text_parts(turn | {"text": None}) == [TextPart("1 2 3 4")]
    # The token that completes a character has it; the ones before have nothing.
    assert text_parts(turn | {"text": "é", "token_ends": [0, 1, 1, 1]}) == [TextPart("é", 2, 0.3)]


def test_a_strip_covers_what_was_recorded():
    turn = {"token_ids": [0] * 4, "entropies": [0.0, 1.0]}
    assert strip(turn) == [StripPart(0.0, 0.25, 0), StripPart(0.25, 0.5, 4)]
    assert strip({"token_ids": [], "entropies": []}) == []
    parts = strip({"token_ids": [0] * 100, "entropies": [0.1] * 100})
    assert (len(parts), parts[0].begin, parts[-1].end, {part.shade for part in parts}) == (24, 0.0, 1.0, {1})
