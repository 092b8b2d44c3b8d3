"""The depth-first layout of trees by hand; `tests/learner/plain.py` walks every leaf's path."""

import numpy as np
import pytest

from rllib_arpo.core.tree import (
    TreeLayout,
    TreeNode,
    context_after,
    depth_first_layout,
    known_beginnings,
)
from tests.helpers.trees import make_trajectory, make_tree, make_turn

#: "0" with two tool calls; "0.0" forked after its first, "0.1" after its second; "0.0.0" from "0.0"; "1" alone.
NESTED = make_tree(
    [1, 2],
    [
        make_trajectory("0", [make_turn([3], [4]), make_turn([5, 6], [7]), make_turn([8])]),
        make_trajectory("1", [make_turn([9])]),
        make_trajectory("0.0", [make_turn([10], [11]), make_turn([12])], num_inherited_turns=1),
        make_trajectory("0.1", [make_turn([13, 14, 15])], num_inherited_turns=2),
        make_trajectory("0.0.0", [make_turn([16])], num_inherited_turns=2),
    ],
)


def test_contexts_of_several_conversations():
    """The second begins with the prompt's first token, the first goes on, and then the second one's first answer."""
    turns = [
        make_turn([3], [1, 4, 5], new_context=True),
        make_turn([6], [1, 2, 3, 7], new_context=True),
        make_turn([8], [1, 4, 5, 6, 9], new_context=True),
        make_turn([10], [11]),
    ]
    prompt = np.array([1, 2])
    contexts = [context_after(prompt, turns[:i]).tolist() for i in range(5)]
    assert contexts == [[1, 2], [1, 4, 5], [1, 2, 3, 7], [1, 4, 5, 6, 9], [1, 4, 5, 6, 9, 10, 11]]
    tree = make_tree(prompt, [make_trajectory("0", turns)])
    known = known_beginnings(tree, depth_first_layout(tree))
    assert [(one.node, one.num_tokens) for one in known] == [(0, 1), (0, 3), (1, 4), (3, 0)]


def test_layout_of_a_nested_tree():
    assert depth_first_layout(NESTED) == TreeLayout(
        nodes=(
            TreeNode(trajectory=0, turn=0, parent=-1, leaf_begin=0, leaf_end=4),
            TreeNode(trajectory=0, turn=1, parent=0, leaf_begin=0, leaf_end=2),
            TreeNode(trajectory=0, turn=2, parent=1, leaf_begin=0, leaf_end=1),
            TreeNode(trajectory=3, turn=0, parent=1, leaf_begin=1, leaf_end=2),
            TreeNode(trajectory=2, turn=0, parent=0, leaf_begin=2, leaf_end=4),
            TreeNode(trajectory=2, turn=1, parent=4, leaf_begin=2, leaf_end=3),
            TreeNode(trajectory=4, turn=0, parent=4, leaf_begin=3, leaf_end=4),
            TreeNode(trajectory=1, turn=0, parent=-1, leaf_begin=4, leaf_end=5),
        ),
        leaves=(0, 3, 2, 4, 1),
    )


def test_a_fork_at_a_turn_that_does_not_exist_is_refused():
    tree = make_tree(
        [1], [make_trajectory("0", [make_turn([2], [3])]), make_trajectory("0.0", [], num_inherited_turns=2)]
    )
    with pytest.raises(ValueError, match=r"trajectories 0\.0 were forked at turns that do not exist"):
        depth_first_layout(tree)


def test_paths_of_thousands_of_turns_and_of_forks_are_laid_out():
    long = make_tree([1], [make_trajectory("0", [make_turn([2], [3])] * 2999 + [make_turn([4])])])
    layout = depth_first_layout(long)
    assert len(layout.nodes) == 3000
    assert layout.nodes[2999] == TreeNode(trajectory=0, turn=2999, parent=2998, leaf_begin=0, leaf_end=1)

    ids = ["0" + ".0" * i for i in range(1200)]
    deep = make_tree([1], [make_trajectory(a, [make_turn([2], [3])], num_inherited_turns=i) for i, a in enumerate(ids)])
    assert len(deep.path(ids[-1])) == 1200
    layout = depth_first_layout(deep)
    assert [node.parent for node in layout.nodes] == list(range(-1, 1199))
    assert layout.leaves == tuple(range(1200))
    assert layout.nodes[7] == TreeNode(trajectory=7, turn=0, parent=6, leaf_begin=7, leaf_end=1200)
