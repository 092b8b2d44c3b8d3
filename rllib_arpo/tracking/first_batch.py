"""Judges model and task by the first batch, before the first update. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rllib_arpo.core.branching import AUTO, rule_in_words, rules_with
from rllib_arpo.core.figures import ExaminedNode
from rllib_arpo.core.tree import QuestionTree


def first_batch_warnings(
    trees: Sequence[QuestionTree],
    nodes: Sequence[ExaminedNode],
    settings: Mapping[str, Any],
    has_signal: bool,
    no_signal: str,
) -> Iterator[str]:
    """At most one sentence if the updates have nothing to learn from, and one if nothing forks.

    Args:
        nodes: the examined nodes of the trees.
        settings: of the run, with its fork rule. If tau is "auto" and nothing forks, the next batch's tau is lower.
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
    branching, tau = settings["branching"], settings["branch_threshold"]
    if branching == "never" or has_forks or all(len(tree.trajectories) == len(tree.initial()) for tree in trees):
        return
    decided = [node for node in nodes if node.decision.eligible]
    if not nodes:
        yield "No trajectory of the first batch goes on after a tool's response, so nothing forks."
    # A response is not decided if, for example, the environment has refused the first fork, or roots were cut off.
    elif decided and branching not in rules_with("branch_threshold"):
        forks = rule_in_words(settings)
        yield f"None of the {len(decided)} tool responses of the first batch forks: a run forks {forks}."
    elif decided and tau != AUTO:
        yield (
            f"None of the {len(decided)} tool responses of the first batch forks: branch_threshold is too high; lower "
            'it, or set "auto".'
        )
