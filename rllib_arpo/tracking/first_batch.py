"""Judges model and task by the first batch, before the first update. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rllib_arpo.core.branching import has_fixed_threshold
from rllib_arpo.core.figures import ExaminedNode
from rllib_arpo.core.tree import QuestionTree


def first_batch_warnings(
    trees: Sequence[QuestionTree],
    nodes: Sequence[ExaminedNode],
    branching: str,
    branch_threshold: float | str,
    has_signal: bool,
    no_signal: str,
) -> Iterator[str]:
    """At most one sentence if the updates have nothing to learn from, and one if nothing forks.

    Args:
        nodes: the examined nodes of the trees.
        branching: the name of the fork rule.
        branch_threshold: tau. With "auto" the next batch's tau is lower if nothing forks.
        has_signal: whether the first update may have an advantage other than 0.
        no_signal: if it has none: the likely cause, and what to do.
    """
    trajectories = [trajectory for tree in trees for trajectory in tree.trajectories]
    # A user's environment may reward right trajectories without reporting an accuracy.
    highest = max(float(tree.returns().max()) for tree in trees)
    if not has_signal:
        yield f"No question of the first batch has rewards that differ, so the model learns nothing: {no_signal}."
    elif not any(trajectory.accuracy > 0 for trajectory in trajectories) and highest <= 0:
        yield (
            f"None of the {len(trajectories)} trajectories of the first batch is right, so the model can learn the "
            "format at most: cold-start the model, or ask easier questions."
        )
    has_forks = any(tree.forks() for tree in trees)
    if branching == "never" or has_forks or all(len(tree.trajectories) == len(tree.initial()) for tree in trees):
        return
    decided = [node for node in nodes if node.decision.eligible]
    if not nodes:
        yield "No trajectory of the first batch goes on after a tool's response, so nothing forks."
    # A response is not decided if, for example, the environment has refused the first fork, or roots were cut off.
    elif decided and has_fixed_threshold(branching, branch_threshold):
        yield (
            f"None of the {len(decided)} tool responses of the first batch forks: branch_threshold is too high; lower "
            'it, or set "auto".'
        )
