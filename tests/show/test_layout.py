"""The places of a tree's parts, the shades of tokens."""

from rllib_arpo.record.read import Question, Trajectory
from rllib_arpo.show.layout import tree_layout
from rllib_arpo.show.shades import StripPart, TextPart, strip, text_parts


def trajectory(agent_id: str, turns: int, inherited: int = 0) -> Trajectory:
    rows = tuple({"turn": i, "depth": inherited + i} for i in range(turns))
    parent = agent_id.rpartition(".")[0] or None
    return Trajectory({"agent_id": agent_id, "parent": parent, "inherited_turns": inherited}, rows)


#: "0" has four turns; "0.0" leaves after the first, "0.1" and "0.2" after the third, "0.0.0" after the first as well.
FORKED = Question(
    {},
    (
        trajectory("0", 4),
        trajectory("0.0", 1, 1),
        trajectory("0.0.0", 2, 1),
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
