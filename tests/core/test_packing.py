"""Packing by hand, and splitting against the unsplit tree; `tests/learner/plain.py` reads every turn's context."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_arpo.core.advantages import NodeAttribution, leaf_ranges, soft_attribution
from rllib_arpo.core.packing import PackedTree, pack_tree, plan_passes
from rllib_arpo.core.shares import LeafWork, Part, cut_by_tokens, share_out, take
from rllib_arpo.core.tree import QuestionTree, StopReason, depth_first_layout
from tests.helpers.trees import make_trajectory, make_tree, make_turn, trees

NO_NODES = NodeAttribution(np.zeros(0), np.zeros(0), np.zeros(0))


def pack(tree: QuestionTree, seed: int = 0, **options) -> tuple[PackedTree, dict[str, tuple[float, float]]]:
    """The packed tree and the random (advantage, weight) of each counting leaf by agent id."""
    layout = depth_first_layout(tree)
    rng = np.random.default_rng(seed)
    advantages, weights = rng.normal(size=len(layout.leaves)), rng.uniform(size=len(layout.leaves))
    packed = pack_tree(tree, layout, soft_attribution(advantages, weights, *leaf_ranges(layout)), **options)
    ids = [tree.trajectories[i].agent_id for i in layout.leaves]
    return packed, dict(zip(ids, zip(advantages, weights, strict=True), strict=True))


def ancestors(packed: PackedTree, t: int) -> list[int]:
    """Token ids that packed token t attends to, itself included, by the rule of the layout."""
    return [int(packed.token_ids[s]) for s in range(t + 1) if t < packed.end[s]]


def test_another_conversation_by_hand():
    """After turn 0 one begins with the prompt's first token; after turn 1 the first goes on, and "0.0" leaves it."""
    tree = make_tree(
        [10, 11, 12],
        [
            make_trajectory(
                "0",
                [
                    make_turn([13, 14], [10, 20, 21], log_prob=-0.5, new_context=True),
                    make_turn([22], [10, 11, 12, 13, 14, 15], log_prob=-0.25, new_context=True),
                    make_turn([16], log_prob=-2.0),
                ],
            ),
            make_trajectory("0.0", [make_turn([17], [18])], num_inherited_turns=2),
        ],
    )
    layout = depth_first_layout(tree)
    weight = np.array([5.0, 6.0, 7.0, 8.0])
    packed = pack_tree(tree, layout, NodeAttribution(weight, -weight, weight))
    dtypes = [str(getattr(packed, field.name).dtype) for field in fields(PackedTree)]
    assert dtypes == ["int64"] * 4 + ["bool"] + ["float32"] * 2 + ["float64"] * 3
    assert packed.token_ids.tolist() == [10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22]
    assert packed.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 1, 2, 3]
    assert packed.parent.tolist() == [-1, 0, 1, 2, 3, 4, 5, 5, 0, 8, 9]
    assert packed.end.tolist() == [11, 8, 8, 8, 8, 8, 7, 8, 11, 11, 11]
    assert np.flatnonzero(packed.loss_mask).tolist() == [3, 4, 6, 7, 10]
    assert packed.behavior_log_probs.tolist() == [0, 0, 0, -0.5, -0.5, 0, -2.0, -1.0, 0, 0, -0.25]
    assert packed.weight.tolist() == [0, 0, 0, 5, 5, 0, 7, 8, 0, 0, 6]
    first, second = [take(packed, part) for part in cut_by_tokens(packed, 8)]
    assert first.token_ids.tolist() == [10, 11, 12, 13, 14, 15, 16, 17]
    assert (second.token_ids.tolist(), second.end.tolist()) == ([10, 20, 21, 22], [4] * 4)
    assert second.loss_mask.tolist() == [False, False, False, True]


def test_a_tree_in_which_no_leaf_counts_is_its_prompt():
    tree = make_tree([1, 2], [make_trajectory("0", [make_turn([3])], stop_reason=StopReason.DEADLINE)])
    packed = pack_tree(tree, depth_first_layout(tree), NO_NODES)
    assert packed.token_ids.tolist() == [1, 2]
    assert packed.num_loss_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "turns", "sentence"),
    [
        ([], [make_turn([3])], "question q has an empty prompt"),
        (
            [1, 2],
            [make_turn([3], new_context=True), make_turn([4])],
            "question q has a turn before which the model has read nothing",
        ),
    ],
)
def test_a_token_before_which_nothing_was_read_is_refused(prompt, turns, sentence):
    with pytest.raises(ValueError, match=sentence):
        pack(make_tree(prompt, [make_trajectory("0", turns)]))


@settings(max_examples=100, deadline=None)
@given(
    trees(max_forks=6, entropy_window=9, unique_tokens=True)
    | trees(max_forks=6, entropy_window=9, unique_tokens=True, new_context_probability=0.5, empty_probability=0.0),
    st.integers(0, 10),
    st.integers(1, 4),
)
def test_shares_hold_whole_paths_and_train_on_each_token_once(tree: QuestionTree, slack: int, num_shares: int):
    packed, _ = pack(tree, with_entropies=True)
    index = {int(token): t for t, token in enumerate(packed.token_ids)}
    seen: list[int] = []
    limit = int(packed.position_ids.max()) + 1 + slack
    shares = share_out({0: packed}, cut_by_tokens(packed, limit), num_shares, pairs_per_token=20.0)
    assert len(shares) == num_shares
    leaves = LeafWork(packed, 20.0)
    for cut in [part for share in shares for part in share]:
        part = take(packed, cut)
        assert part.num_tokens <= limit
        # A token's position counts the tokens that it attends to, less itself.
        assert leaves.work(cut) == pytest.approx(sum(1 + (position + 1) / 20 for position in part.position_ids))
        for t, token in enumerate(part.token_ids.tolist()):
            original = index[token]
            assert ancestors(part, t) == ancestors(packed, original)
            assert part.position_ids[t] == packed.position_ids[original]
            parent = part.parent[t]
            assert (part.token_ids[parent] if parent >= 0 else -1) == (
                packed.token_ids[packed.parent[original]] if packed.parent[original] >= 0 else -1
            )
            if part.loss_mask[t]:
                seen.append(token)
                for name in ("behavior_log_probs", "behavior_entropies", "a_pos", "a_neg", "weight"):
                    assert getattr(part, name)[t] == getattr(packed, name)[original]
    assert sorted(seen) == sorted(packed.token_ids[packed.loss_mask].tolist())


def test_shares_by_hand():
    """A token costs 1 without attention: two trees have a prompt of 2 and four leaves of 4, the third one of 3."""
    lengths_of_trees = [4] * 4, [4] * 4, [3]
    trees = {}
    for number, lengths in enumerate(lengths_of_trees):
        leaves = [make_trajectory(str(i), [make_turn([7] * n)]) for i, n in enumerate(lengths)]
        trees[number], _ = pack(make_tree([1, 2], leaves))
    parts = [Part(0, 0, 4), Part(1, 0, 4), Part(2, 0, 1)]

    assert share_out(trees, parts, 1, np.inf) == [parts]
    # 18 + 5 and 18. If the first share gave a leaf away, the other one would have 18 + 2 + 4.
    halves = share_out(trees, parts, 2, np.inf)
    assert sorted(map(sorted, halves)) == [[Part(0, 0, 4), Part(2, 0, 1)], [Part(1, 0, 4)]]
    # Three leaves of each large tree are 14, the fourth is 6.
    quarters = share_out(trees, parts, 4, np.inf)
    work = {number: LeafWork(packed, np.inf) for number, packed in trees.items()}
    assert sorted(sum(work[part.tree].work(part) for part in share) for share in quarters) == [6, 11, 14, 14]


FORKED_CHAIN = make_tree(
    [1, 2],
    [
        make_trajectory("0", [make_turn([3, 4], [5]), make_turn([6, 7])]),
        make_trajectory("0.0", [make_turn([8, 9, 10])], num_inherited_turns=1),
    ],
)


def test_a_path_longer_than_the_limit_names_the_key():
    with pytest.raises(ValueError, match=r"a trajectory of 8 tokens.*max_tokens_per_pass is 7"):
        cut_by_tokens(pack(FORKED_CHAIN)[0], 7)


@pytest.mark.parametrize(
    ("sizes", "passes"),
    [([], []), ([5], [[0]]), ([4, 6, 1, 9, 10], [[4], [2, 3], [0, 1]]), ([6, 5, 5, 6], [[0], [3], [1, 2]])],
)
def test_the_largest_trees_come_first_and_smaller_ones_fill_the_rooms(sizes: list[int], passes: list[list[int]]):
    assert plan_passes(sizes, 10) == passes
