"""Computes the advantage of each turn of each leaf from the returns of a question (docs/design.md, "Credit").

A credit is a function `(rewards[L], tree, layout, normalize_std) -> [L]`, if a leaf has the same advantage in all its
turns, or `-> [N, L]`: row n has the advantages, at node n, of the leaves below; other entries are ignored. L are the
leaves that count and N the nodes, both in the order of the layout. `rewards` are the returns of whole paths; the tree
has the reward of each turn. All arrays are float64. With `normalize_std` a credit divides by a standard deviation.
"""

import pkgutil
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from rllib_arpo.core.advantages import earlier_rewards, group_advantages, last_nodes, leaf_ranges, node_depths
from rllib_arpo.core.tree import QuestionTree, TreeLayout, fork_path

CreditFunction = Callable[[np.ndarray, QuestionTree, TreeLayout, bool], np.ndarray]


def _group(rewards: np.ndarray, _tree: QuestionTree, _layout: TreeLayout, normalize_std: bool) -> np.ndarray:
    """Compares a leaf with all leaves of the question (`group_advantages`)."""
    return group_advantages(rewards, normalize_std)


def tree_credit(rewards: np.ndarray, tree: QuestionTree, layout: TreeLayout, normalize_std: bool = True) -> np.ndarray:
    """`A = A_intra + A_inter`, [L]: compares a leaf within its own tree and with all trees (Tree-GRPO, 2509.21240).

    A tree is a root with all its forks. Both terms are `group_advantages`, A_intra over the leaves of the leaf's tree
    and A_inter over all leaves of the question. The paper defines the sum and the two groups; the authors' code, like
    `group_advantages`, has ddof = 1 and the 1e-6. For a tree with a single leaf their code sets A_intra to the bare
    reward; here that leaf has no other leaf to be compared with, so A_intra is 0.
    """
    roots = np.array([fork_path(tree.trajectories[leaf].agent_id)[0] for leaf in layout.leaves])
    advantages = group_advantages(rewards, normalize_std)
    for root in np.unique(roots):
        advantages[roots == root] += group_advantages(rewards[roots == root], normalize_std)
    return advantages


def same_state_credit(
    rewards: np.ndarray, tree: QuestionTree, layout: TreeLayout, normalize_std: bool = True
) -> np.ndarray:
    """`A = A_episode + A_step`, [N, L]; after GiGPO (arXiv 2505.10978) with omega = gamma = 1.

    A_episode is the group advantage of the return. A_step is the group advantage of the reward-to-go among the leaves
    that read the same tool response at the same depth, whatever precedes it; before the first turn all have read the
    prompt. If no other leaf read the response, A_step is 0. GiGPO's code (we read the copies vanzll/verl-agent,
    d0b9724, and langfengQ/DrMAS, 3b556f2, gigpo/core_gigpo.py) ignores the depth; its scripts use gamma = 0.95.
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
    """The tokens of the tool response before node n; empty before a first turn."""
    parent = layout.nodes[n].parent
    return b"" if parent < 0 else tree.turn_of(layout.nodes[parent]).observation.tobytes()


@dataclass(frozen=True, slots=True)
class Credit:
    """A credit and its properties.

    Attributes:
        function: the credit.
        needs_forks: whether it equals "group" if nothing forks.
        judges_equal_returns: whether turns may get an advantage even if all returns of the question are equal.
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
    """Each leaf's advantage in its last turn, [L], and the advantages in all turns, [N, L].

    The second is None if each leaf has one advantage in all its turns. If no leaf counts, the credit is not called. It
    gets a copy of the rewards, which it may change.

    Raises:
        ValueError: the credit raised, or did not return finite real numbers of one of the two shapes.
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
    # `astype` would also turn other types, such as texts and complex numbers, into floats.
    found = given.astype(np.float64) if given.dtype.kind in "biuf" else np.array(np.nan)
    if given.shape not in ((num_leaves,), (num_nodes, num_leaves)) or not np.isfinite(found).all():
        raise ValueError(
            f"baseline: {name} gave {given.dtype} {given.shape} for {num_leaves} leaves and {num_nodes} nodes; it "
            "should give finite numbers, (leaves,) or (nodes, leaves)."
        )
    if found.ndim == 1:
        return found, None
    # The last row, at index -1, is for leaves without a turn.
    return np.vstack([found, np.zeros(num_leaves)])[last_nodes(layout), np.arange(num_leaves)], found


#: name -> credit. "batch" is not among them: it needs the rewards of the other questions, so the
#: connector computes it.
CREDITS: dict[str, Credit] = {
    "group": Credit(_group),
    "tree": Credit(tree_credit, needs_forks=True),
    "same_state": Credit(same_state_credit, judges_equal_returns=True),
}
