"""Every credit on one small tree, by hand.

prompt
|- "0": turn, paid 1, tool [3], turn, paid 3     return 4
|  `- "0.0": turn after the tool                 return 1
|- "1": turn, tool [3], turn                     return 0
`- "2": turn, paid 3                             return 3

The nodes: the first turn of "0", its second, that of "0.0", the first of "1", its second, that of "2".
"""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from rllib_arpo.core.advantages import leaf_ranges
from rllib_arpo.core.credit import CREDITS, advantages_of, credit_of
from rllib_arpo.core.tree import StopReason, depth_first_layout
from rllib_arpo.options.tables import OPTIONS
from tests.helpers.trees import make_trajectory, make_tree, make_turn

TREE = make_tree(
    [1],
    [
        make_trajectory("0", [make_turn([2], [3], reward=1.0), make_turn([4])], reward=3.0),
        make_trajectory("1", [make_turn([5], [3]), make_turn([6])]),
        make_trajectory("2", [make_turn([7])], reward=3.0),
        make_trajectory("0.0", [make_turn([8])], num_inherited_turns=1),
    ],
)
LAYOUT = depth_first_layout(TREE)
REWARDS = TREE.returns()[list(LAYOUT.leaves)]


def by_node(credit: str, rewards: np.ndarray = REWARDS, normalize_std: bool = False) -> list[list[float]]:
    """Of each node the advantages of the leaves below."""
    advantages = credit_of(credit)(rewards, TREE, LAYOUT, normalize_std)
    rows = np.broadcast_to(advantages, (len(LAYOUT.nodes), len(LAYOUT.leaves)))
    return [row[begin:end].tolist() for row, begin, end in zip(rows, *leaf_ranges(LAYOUT), strict=True)]


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        # The returns 4, 1, 0 and 3 have the mean 2.
        ("group", [[2, -1], [2], [-1], [-2], [-2], [1]]),
        # Beside it 4 and 1 of mean 2.5 in the tree of "0".
        ("tree", [[3.5, -2.5], [3.5], [-2.5], [-2], [-2], [1]]),
        # All read the prompt; three read [3], and earn 3, 0 and 0 after that, of mean 1.
        ("same_state", [[4, -2], [4], [-2], [-4], [-3], [2]]),
    ],
)
def test_a_credit_by_hand(credit, expected):
    assert set(CREDITS) == {"group", "tree", "same_state"}
    for found, row in zip(by_node(credit), expected, strict=True):
        np.testing.assert_allclose(found, row, atol=1e-14)


def of_a_user(rewards, tree, layout, normalize_std):
    rewards -= rewards.max()
    given = {"leaves": rewards, "wrong": rewards[:-1], "nan": rewards * np.nan, "rows": [[1.0], [1.0, 2.0]]}
    given |= {"complex": rewards + 1j, "dates": np.zeros(4, "M8[s]"), "gradient": torch.zeros(4, requires_grad=True)}
    return (given | {"nothing": None, "texts": ["1"] * 4})[tree.question_id]


@pytest.mark.parametrize("kind", ["leaves", "wrong", "nan", "rows", "nothing", "texts", "complex", "dates", "gradient"])
def test_a_function_of_the_user(kind):
    credit, tree, rewards = credit_of(f"{__name__}:of_a_user"), replace(TREE, question_id=kind), REWARDS.copy()
    wrong = pytest.raises(ValueError, match=r"^baseline: of_a_user gave .* 4 leaves and 6 nodes")
    with nullcontext() if kind == "leaves" else wrong:
        leaves, nodes = advantages_of(credit, rewards, tree, LAYOUT, True)
        assert nodes is None and leaves.tolist() == [0, -3, -4, -1]
    assert rewards.tolist() == REWARDS.tolist()


def test_a_function_of_the_user_that_raises_is_named_and_it_is_not_asked_where_no_leaf_counts():
    tree = replace(TREE, question_id="unknown")
    with pytest.raises(ValueError, match=r"^baseline: of_a_user raised KeyError: 'unknown'\.$"):
        advantages_of(of_a_user, REWARDS, tree, LAYOUT, True)
    masked = [replace(trajectory, stop_reason=StopReason.DEADLINE) for trajectory in TREE.trajectories]
    tree = replace(tree, trajectories=tuple(masked))
    leaves, nodes = advantages_of(of_a_user, np.zeros(0), tree, depth_first_layout(tree), True)
    assert (leaves.tolist(), nodes) == ([], None)


def test_a_baseline_is_a_name_or_a_function(tmp_path, monkeypatch):
    rule = OPTIONS["baseline"].rule
    rule.check("baseline", f"{__name__}:of_a_user")
    for wrong in ("none", "json:__doc__", "json:loads", 3):
        with pytest.raises(ValueError, match=r"^baseline=.*: must be one of 'group', .* or \"module:function\""):
            rule.check("baseline", wrong)
    (tmp_path / "broken.py").write_text("no_name")
    monkeypatch.syspath_prepend(tmp_path)
    causes = {"json:nothing": "module 'json' has no attribute 'nothing'", "broken:it": "name 'no_name' is not defined"}
    for wrong, cause in causes.items():
        with pytest.raises(ValueError, match=rf"^baseline='{wrong}' cannot be imported \({cause}\)\.$"):
            rule.check("baseline", wrong)
