"""The counts of a forked tree by hand, and against walking every leaf's path."""

import numpy as np
import pytest
from hypothesis import given, settings

from rllib_arpo.core.token_counts import (
    all_path_tokens,
    flat_tokens,
    path_tokens,
    response_tokens,
    sampled_tokens,
    shared_tokens,
)
from rllib_arpo.core.tree import QuestionTree, StopReason, depth_first_layout
from tests.helpers.trees import make_trajectory, make_tree, make_turn, trees


def _forked_tree(stop_of_root: StopReason = StopReason.ANSWER) -> QuestionTree:
    """A prompt of 2 tokens. "0" generates 2 and 1 and is answered 1 and 2; "0.0" generates 3 after the first turn."""
    return make_tree(
        [1, 2],
        [
            make_trajectory("0", [make_turn([10, 11], [90]), make_turn([12], [91, 92])], stop_reason=stop_of_root),
            make_trajectory("0.0", [make_turn([13, 14, 15])], num_inherited_turns=1),
        ],
    )


def test_of_several_conversations_the_longest_is_the_response():
    """The second one shares a token of the prompt, and is the longer one: 1 + 7 + 1 tokens, 2 as the prompt's."""
    turns = [
        make_turn([10, 11], [1] + [90] * 7, new_context=True),
        make_turn([12], [1, 2, 10, 11, 91], new_context=True),
        make_turn([13]),
    ]
    tree = make_tree([1, 2], [make_trajectory("0", turns)])
    layout = depth_first_layout(tree)
    assert response_tokens(tree, layout).tolist() == [9 - 2]
    assert path_tokens(tree, layout).tolist() == [4]
    assert flat_tokens(tree, layout) == 2 + 4 + 8


@pytest.mark.parametrize(
    ("advantages", "mixed"), [((1.0, -1.0), 2), ((-0.5, 0.1), 2), ((1.0, 0.5), 0), ((0.0, -1.0), 0), ((0.0, 0.0), 0)]
)
def test_shared_tokens_are_pulled_both_ways_where_advantages_have_both_signs(advantages, mixed):
    tree = _forked_tree()
    layout = depth_first_layout(tree)
    assert shared_tokens(tree, layout, np.array(advantages)) == (2, mixed)
    # At the shared node both leaves have 1, after the fork 0 and -1.
    by_node = np.array([[1.0, 1.0], [0.0, 0.0], [0.0, -1.0]])
    assert shared_tokens(tree, layout, by_node) == (2, 0)
    assert shared_tokens(tree, layout, np.array([1.0, 2.0]), offsets=np.array([1.5, 0.0, 0.0])) == (2, 2)
    # What one path alone passes, of those that count, is not shared.
    masked = _forked_tree(StopReason.DEADLINE)
    assert shared_tokens(masked, depth_first_layout(masked), np.array([1.0])) == (0, 0)


@settings(max_examples=100, deadline=None)
@given(trees(masked_probability=0.3))
def test_counts_equal_those_of_walking_every_path(tree: QuestionTree):
    everything = [[len(turn.token_ids) for turn in tree.path(t.agent_id)] for t in tree.trajectories]
    assert all_path_tokens(tree).tolist() == list(map(sum, everything))
    layout = depth_first_layout(tree)
    paths = [tree.path(tree.trajectories[leaf].agent_id) for leaf in layout.leaves]
    generated = [sum(len(turn.token_ids) for turn in path) for path in paths]
    observed = [sum(len(turn.observation) for turn in path) for path in paths]
    assert path_tokens(tree, layout).tolist() == generated
    assert response_tokens(tree, layout).tolist() == [sum(pair) for pair in zip(generated, observed, strict=True)]
    # The response after which a path ends is not read.
    last = [len(path[-1].observation) if path else 0 for path in paths]
    assert flat_tokens(tree, layout) == sum(generated) + sum(observed) - sum(last) + len(paths) * len(tree.prompt)
    assert sampled_tokens(tree) == sum(len(turn.token_ids) for t in tree.trajectories for turn in t.turns)
