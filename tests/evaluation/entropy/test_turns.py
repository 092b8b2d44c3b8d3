"""What is read of a tree: every sample, and of each its turns."""

from __future__ import annotations

from types import SimpleNamespace

from rllib_arpo.core.tree import StopReason
from rllib_arpo.evaluation.entropy.turns import samples_of
from rllib_arpo.rollout.episodes import tree_to_episode
from tests.helpers.models import byte_tokenizer
from tests.helpers.trees import make_trajectory, make_tree, make_turn


def test_a_sample_that_ended_in_its_first_turn_is_read_too():
    tree = make_tree(
        [65, 66],
        [
            make_trajectory("0", [make_turn([67], observation=[68]), make_turn([69, 70])]),
            make_trajectory("1", [], stop_reason=StopReason.DEADLINE),
        ],
        "squares/0",
    )
    env = SimpleNamespace(tokenizer=byte_tokenizer(), protocol=SimpleNamespace(end_tags=()))
    first, second = samples_of(SimpleNamespace(number=4, episode=tree_to_episode(tree)), env)
    assert (second.number, second.sample, second.stop_reason, second.turns) == (4, 1, "deadline", ())
    assert (first.number, first.sample, first.stop_reason) == (4, 0, "answer")
    assert [
        (t.question_id, t.round, t.tool, t.read_ids.tolist(), t.token_ids.tolist(), t.entropies.tolist())
        for t in first.turns
    ] == [
        ("squares/0", 0, None, [65, 66], [67], [1.0]),
        ("squares/0", 1, "python", [68], [69, 70], [1.0, 1.0]),
    ]
