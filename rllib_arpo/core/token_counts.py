"""Counts the tokens of a question's tree; shared tokens count once, or once per leaf.

L: the leaves that count, in `TreeLayout.leaves` order. "Generated" are the model's own tokens, without tool responses.
"""

import itertools

import numpy as np

from rllib_arpo.core.tree import QuestionTree, TreeLayout, known_beginnings


def sampled_tokens(tree: QuestionTree) -> int:
    """Generated tokens of all trajectories, also of masked ones; a shared token counts once."""
    return sum(len(turn.token_ids) for trajectory in tree.trajectories for turn in trajectory.turns)


def all_path_tokens(tree: QuestionTree) -> np.ndarray:
    """[M] int64: `|o_l|` of every trajectory, also of masked ones, in the order of the tree."""
    # Agent id -> how many tokens its path has after 0, 1, 2, ... turns.
    sums: dict[str, list[int]] = {}
    for t in tree.trajectories:
        above = [0] if t.parent is None else sums[t.parent][: t.num_inherited_turns + 1]
        sums[t.agent_id] = [
            *above[:-1],
            *itertools.accumulate((len(turn.token_ids) for turn in t.turns), initial=above[-1]),
        ]
    return np.array([path[-1] for path in sums.values()], dtype=np.int64)


def path_tokens(tree: QuestionTree, layout: TreeLayout) -> np.ndarray:
    """`|o_l|`, [L] int64: generated tokens on each leaf's whole path; a shared token counts once per leaf."""
    return all_path_tokens(tree)[np.array(layout.leaves, dtype=np.int64)]


def response_tokens(tree: QuestionTree, layout: TreeLayout) -> np.ndarray:
    """[L] int64: the tokens after the prompt on each leaf's whole path, which `max_response_tokens` limits.

    If a path has several contexts (`Turn.new_context`), the longest one counts.
    """
    counts = np.zeros(len(layout.leaves), dtype=np.int64)
    # Tokens of the context after each node; at index -1, of the prompt.
    context = np.full(len(layout.nodes) + 1, len(tree.prompt), dtype=np.int64)
    for n, node in enumerate(layout.nodes):
        turn = tree.turn_of(node)
        written = context[node.parent] + len(turn.token_ids)
        context[n] = (0 if turn.new_context else written) + len(turn.observation)
        below = slice(node.leaf_begin, node.leaf_end)
        counts[below] = np.maximum(counts[below], max(written, context[n]) - len(tree.prompt))
    return counts


def _read_tokens(tree: QuestionTree, layout: TreeLayout) -> np.ndarray:
    """[N] int64: tokens of each node's tool response; a new context counts only tokens that its path does not have."""
    known = known_beginnings(tree, layout)
    return np.array(
        [len(tree.turn_of(node).observation) - k.num_tokens for node, k in zip(layout.nodes, known, strict=True)],
        dtype=np.int64,
    )


def flat_tokens(tree: QuestionTree, layout: TreeLayout) -> int:
    """Tokens of the question if every counted trajectory is computed on its own, its prompt included.

    A tool response after which the trajectory ends is left out, as in the packed tree.
    """
    # How many leaves are below each node, and how many below its children, which read its tool response.
    below = np.array([node.leaf_end - node.leaf_begin for node in layout.nodes], dtype=np.int64)
    reading = np.zeros(len(layout.nodes) + 1, dtype=np.int64)
    for node, leaves in zip(layout.nodes, below, strict=True):
        reading[node.parent] += leaves
    generated = np.array([len(tree.turn_of(node).token_ids) for node in layout.nodes], dtype=np.int64)
    on_paths = below @ generated + reading[:-1] @ _read_tokens(tree, layout)
    return len(layout.leaves) * len(tree.prompt) + int(on_paths)


def shared_tokens(
    tree: QuestionTree, layout: TreeLayout, advantages: np.ndarray, offsets: np.ndarray | None = None
) -> tuple[int, int]:
    """Counts the generated tokens that several counted trajectories share, and those that get both signs.

    Args:
        advantages: [L], or [N, L] if they differ from turn to turn; a token gets both signs if leaves below it have
            positive and negative advantages.
        offsets: [N], subtracted from the advantages at each node (`to_go_offsets`); None: 0.

    Returns:
        (shared tokens, shared tokens with both signs), each token counted once.
    """
    shared = mixed = 0
    at_nodes = np.broadcast_to(advantages, (len(layout.nodes), len(layout.leaves)))
    if offsets is not None:
        at_nodes = at_nodes - offsets[:, None]
    for node, at_node in zip(layout.nodes, at_nodes, strict=True):
        below = at_node[node.leaf_begin : node.leaf_end]
        if len(below) > 1:
            num_tokens = len(tree.turn_of(node).token_ids)
            shared += num_tokens
            mixed += num_tokens if below.min() < 0 < below.max() else 0
    return shared, mixed
