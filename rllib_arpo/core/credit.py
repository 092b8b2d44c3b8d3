"""Credit: from the returns of a question's leaves to what judges each turn of each leaf (docs/design.md, "Credit").

A credit is a function `(rewards[L], tree, layout, normalize_std) -> [L]`, if a leaf has the same advantage in all its
turns, or `-> [N, L]`: row n has the advantages, at node n, of the leaves below; other entries are ignored. L are the
leaves that count and N the nodes, both in the order of the layout. `rewards` are the returns of whole paths, what each
turn was paid is in the tree. All in float64. With `normalize_std` rewards are divided by a standard deviation.
"""

import pkgutil
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from rllib_arpo.core.advantages import (
    earlier_rewards,
    group_advantages,
    last_nodes,
    leaf_ranges,
    leaf_roots,
    node_depths,
    tree_advantages,
)
from rllib_arpo.core.tree import QuestionTree, TreeLayout

CreditFunction = Callable[[np.ndarray, QuestionTree, TreeLayout, bool], np.ndarray]

#: The group's, from which the learner takes the values of the states before turns (`ValueBaseline`).
VALUE = "value"
#: The baseline above a fork weighs as much as so many siblings in `sibling_credit`.
PRIOR_SIBLINGS = 1.0


def _group(rewards: np.ndarray, _tree: QuestionTree, _layout: TreeLayout, normalize_std: bool) -> np.ndarray:
    """The leaf against all leaves of the question (`group_advantages`)."""
    return group_advantages(rewards, normalize_std)


def _tree(rewards: np.ndarray, tree: QuestionTree, layout: TreeLayout, normalize_std: bool) -> np.ndarray:
    """The leaf against its own tree and against all trees (`tree_advantages`)."""
    return tree_advantages(rewards, leaf_roots(tree, layout), normalize_std)


def forks_apart_credit(
    rewards: np.ndarray, tree: QuestionTree, layout: TreeLayout, normalize_std: bool = True
) -> np.ndarray:
    """Roots are compared with roots and forks with forks, [L]; after the two groups of APPO (arXiv 2606.12384).

    APPO's code (AMAP-ML/APPO, b04e7e9, ray_trainer.py) goes on otherwise: its forks are not trained, their mean
    advantage judges their root's turns up to the fork, only roots are forked, and its std has ddof 0.
    """
    is_fork = np.array([tree.trajectories[leaf].parent is not None for leaf in layout.leaves], dtype=bool)
    advantages = np.zeros(len(rewards))
    for group in (is_fork, ~is_fork):
        advantages[group] = group_advantages(rewards[group], normalize_std)
    return advantages


def same_state_credit(
    rewards: np.ndarray, tree: QuestionTree, layout: TreeLayout, normalize_std: bool = True
) -> np.ndarray:
    """`A = A_episode + A_step`, [N, L]; after GiGPO (arXiv 2505.10978) with omega = gamma = 1.

    A_episode is the group advantage of the return. A_step is that of the reward-to-go among the leaves that read the
    same tool response at the same depth, whatever stands before it; before the first turn all read the prompt. A leaf
    that nobody else shares the response with has A_step = 0. GiGPO's code (read in the copies vanzll/verl-agent,
    d0b9724, and langfengQ/DrMAS, 3b556f2, gigpo/core_gigpo.py) does not look at the depth; its scripts have
    gamma = 0.95.
    """
    begin, end = leaf_ranges(layout)
    to_go = rewards[None, :] - earlier_rewards(tree, layout)[:, None]
    groups: dict[Hashable, list[int]] = {}
    for n, depth in enumerate(node_depths(layout)):
        groups.setdefault((depth, _read_before(tree, layout, n)), []).append(n)
    advantages = np.tile(group_advantages(rewards, normalize_std), (len(layout.nodes), 1))
    for nodes in groups.values():
        rows = np.concatenate([np.full(end[n] - begin[n], n) for n in nodes])
        leaves = np.concatenate([np.arange(begin[n], end[n]) for n in nodes])
        advantages[rows, leaves] += group_advantages(to_go[rows, leaves], normalize_std)
    return advantages


def _read_before(tree: QuestionTree, layout: TreeLayout, n: int) -> bytes:
    """The tokens of the tool response before node n; nothing before a first turn."""
    parent = layout.nodes[n].parent
    return b"" if parent < 0 else tree.turn_of(layout.nodes[parent]).observation.tobytes()


def node_value_credit(
    rewards: np.ndarray, tree: QuestionTree, layout: TreeLayout, normalize_std: bool = True
) -> np.ndarray:
    """`A_n = ((V_n - V_root) + (V_n - V_parent)) / sqrt(L_n)` for all leaves below; after TreeRL (arXiv 2506.11902).

    V_n is the mean return of the L_n leaves below node n, and V_root that of all leaves. A node of the paper is all
    that lies between two forks: turns below which are the same leaves have the same parent, and the same advantage.
    TreeRL's code (THUDM/TreeRL, f0edbea, tree_node.py) takes each leaf's reward against the others', divides nothing by
    a std (`normalize_std=False` here), and the parent's term by the root of its own leaves:
    `2 V_n / sqrt(S_n) - V_parent / sqrt(S_parent)`, S the leaves that were chosen for training.

    Returns:
        [N, L].
    """
    begin, end = leaf_ranges(layout)
    centered = group_advantages(rewards, normalize_std)
    advantages, values = np.zeros(len(layout.nodes)), np.zeros(len(layout.nodes))
    for n, node in enumerate(layout.nodes):
        values[n] = centered[begin[n] : end[n]].mean()
        above = 0.0
        if node.parent >= 0:
            if end[n] - begin[n] == end[node.parent] - begin[node.parent]:
                advantages[n] = advantages[node.parent]
                continue
            above = values[node.parent]
        advantages[n] = (2 * values[n] - above) / np.sqrt(end[n] - begin[n])
    return np.tile(advantages[:, None], (1, len(rewards)))


def sibling_credit(
    rewards: np.ndarray, tree: QuestionTree, layout: TreeLayout, normalize_std: bool = True
) -> np.ndarray:
    """`A_nl = (r_l - b_n) / std`, against the leaves that branch off beside node n, shrunken towards those further up.

    `b_n = (sum of r over the m leaves below n's parent, but not below n + k b_parent) / (m + k)`, k = PRIOR_SIBLINGS;
    at the roots k is 0. No leaf below n enters b_n, so without the division the baseline adds no bias of its own, as
    long as the other leaves do not depend on what n generated. Where there is no other leaf, A is 0.

    Returns:
        [N, L].
    """
    begin, end = leaf_ranges(layout)
    # A baseline that is a mean takes a shift of all rewards away again.
    scaled = group_advantages(rewards, normalize_std)
    baseline = np.zeros(len(layout.nodes))
    prefix = np.concatenate([[0.0], np.cumsum(scaled)])
    is_alone = np.zeros(len(layout.nodes), dtype=bool)
    for n, node in enumerate(layout.nodes):
        is_root = node.parent < 0
        low, high = (0, len(rewards)) if is_root else (begin[node.parent], end[node.parent])
        num_beside = (high - low) - (end[n] - begin[n])
        beside = (prefix[high] - prefix[low]) - (prefix[end[n]] - prefix[begin[n]])
        has_prior = not is_root and not is_alone[node.parent]
        prior = PRIOR_SIBLINGS if has_prior else 0.0
        is_alone[n] = num_beside + prior == 0
        if not is_alone[n]:
            baseline[n] = (beside + (prior * baseline[node.parent] if has_prior else 0.0)) / (num_beside + prior)
    return np.where(is_alone[:, None], 0.0, scaled[None, :] - baseline[:, None])


@dataclass(frozen=True, slots=True)
class Credit:
    """All that is known about a credit.

    Attributes:
        function: the credit.
        needs_forks: whether it is the group's where nothing forks.
        judges_equal_returns: whether turns may get an advantage though all returns of the question are equal.
    """

    function: CreditFunction
    needs_forks: bool = False
    judges_equal_returns: bool = False


def credit_of(name: str) -> CreditFunction:
    """The credit with a name of `CREDITS`, or the function that "module:function" names.

    Raises:
        ImportError, AttributeError: there is no such function.
    """
    function: CreditFunction = CREDITS[name].function if name in CREDITS else pkgutil.resolve_name(name)
    return function


def advantages_of(
    credit: CreditFunction, rewards: np.ndarray, tree: QuestionTree, layout: TreeLayout, normalize_std: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """(the advantage of each leaf in its last turn, [L], and those of all turns, [N, L]; None: they are the same).

    A credit is not asked where no leaf counts, and may change the rewards that it gets.

    Raises:
        ValueError: the credit raised, or what it gave has another shape, or is not of finite real numbers.
    """
    num_nodes, num_leaves = len(layout.nodes), len(layout.leaves)
    if not num_leaves:
        return np.zeros(0), None
    name = getattr(credit, "__name__", type(credit).__name__)
    try:
        given = credit(rewards.copy(), tree, layout, normalize_std)
    except Exception as error:
        raise ValueError(f"baseline: {name} raised {type(error).__name__}: {error}.") from error
    try:
        given = np.asarray(given)
    except (TypeError, ValueError, RuntimeError):  # Rows of different lengths, or a tensor with a gradient.
        given = np.array(None)
    # Anything else, such as texts and complex numbers, would become a number as well.
    found = given.astype(np.float64) if given.dtype.kind in "biuf" else np.array(np.nan)
    if given.shape not in ((num_leaves,), (num_nodes, num_leaves)) or not np.isfinite(found).all():
        raise ValueError(
            f"baseline: {name} gave {given.dtype} {given.shape} for {num_leaves} leaves and {num_nodes} nodes; it "
            "should give finite numbers, (leaves,) or (nodes, leaves)."
        )
    if found.ndim == 1:
        return found, None
    # The last row, at index -1, is of leaves without a turn.
    return np.vstack([found, np.zeros(num_leaves)])[last_nodes(layout), np.arange(num_leaves)], found


#: name -> credit. "batch" is not among them: it needs the rewards of the other questions (`BatchAdvantage`).
CREDITS: dict[str, Credit] = {
    "group": Credit(_group),
    "tree": Credit(_tree, needs_forks=True),
    "forks_apart": Credit(forks_apart_credit, needs_forks=True),
    "same_state": Credit(same_state_credit, judges_equal_returns=True),
    "node_values": Credit(node_value_credit),
    "siblings": Credit(sibling_credit),
    VALUE: Credit(_group, judges_equal_returns=True),
}
