"""The places of a tree's parts, the shades of tokens."""

from dataclasses import replace

import numpy as np

from rllib_arpo.core.tree import Trajectory, Turn
from rllib_arpo.record.question import TurnText
from rllib_arpo.show.drawing import StripPart, TextPart, strip, text_parts, tree_layout
from tests.helpers.trees import make_trajectory, make_tree, make_turn


def trajectory(agent_id: str, turns: int, inherited: int = 0) -> Trajectory:
    return make_trajectory(agent_id, [make_turn([1])] * turns, num_inherited_turns=inherited)


#: "0" has four turns; "0.0" leaves after the first, "0.1" and "0.2" after the third, "0.0.0" after the first as well.
FORKED = make_tree(
    [1],
    [
        trajectory("0", 4),
        trajectory("0.0", 1, 1),
        trajectory("0.0.0", 2, 1),
        trajectory("0.1", 1, 3),
        trajectory("0.2", 0, 3),
        trajectory("1", 1),
    ],
)


def test_forks_from_later_turns_are_nearer_to_their_parent():
    layout = tree_layout(FORKED)
    assert list(layout.lines) == ["0", "0.1", "0.2", "0.0", "0.0.0", "1"]
    assert (layout.x(0), layout.x(1) - layout.x(0), layout.y("0.1") - layout.y("0")) == (136, 172, 58)
    assert (layout.width, layout.height) == (136 + 4 * 172 + 250, 6 * 58)


def turn(num_tokens: int, entropies: list[float]) -> Turn:
    return replace(make_turn(range(1, num_tokens + 1)), entropies=np.array(entropies))


def test_tokens_with_entropy_are_parts_of_their_own():
    four, text = turn(4, [0.01, 0.3, 4.0]), TurnText("ab cd!", [2, 3, 5, 6], None)
    assert text_parts(four, text) == [TextPart("ab"), TextPart(" ", 2, 0.3), TextPart("cd", 7, 4.0), TextPart("!")]
    assert text_parts(four, replace(text, token_ends=None)) == [TextPart("ab cd!")]
    assert text_parts(four, replace(text, text=None)) == [TextPart("1 2 3 4")]
    # The token that completes a character has it; the ones before have nothing.
    assert text_parts(four, TurnText("é", [0, 1, 1, 1], None)) == [TextPart("é", 2, 0.3)]


def test_a_strip_covers_what_was_recorded():
    assert strip(turn(4, [0.0, 1.0])) == [StripPart(0.0, 0.25, 0), StripPart(0.25, 0.5, 4)]
    assert strip(turn(0, [])) == []
    parts = strip(turn(100, [0.1] * 100))
    assert (len(parts), parts[0].begin, parts[-1].end, {part.shade for part in parts}) == (24, 0.0, 1.0, {1})
