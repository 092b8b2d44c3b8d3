"""Judges model and task by the first batch, before the first update: a line, and warnings. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rllib_arpo.core.branching import rules_with
from rllib_arpo.core.figures import ExaminedNode, has_signal, is_solved
from rllib_arpo.core.pass_at_k import is_correct, pass_at_k
from rllib_arpo.core.tree import QuestionTree


def first_batch_line(trees: Sequence[QuestionTree], nodes: Sequence[ExaminedNode]) -> str:
    """E.g. "sampled     accuracy 0.167  pass@2 0.333  any of M 0.667  with signal 0.500  forked 0.31  6 questions".

    Accuracy and pass@k use only the k trajectories that began at the prompt, without top-ups, since a fork shares its
    parent's beginning. "any of M" is the share of questions with a right trajectory, forks included; "with signal" the
    share of questions whose returns differ; "forked" the share of decided tool responses that were forked. Without
    forks the line has no "any of M" and no "forked".
    """
    initial = [[trajectory.accuracy for trajectory in tree.initial()] for tree in trees]
    k = min(map(len, initial))
    passes = [pass_at_k(len(own), sum(map(is_correct, own)), k) for own in initial]
    decided = _decided(nodes)
    return "  ".join(
        [
            f"sampled     accuracy {np.mean(list(map(np.mean, initial))):5.3f}",
            f"pass@{k} {np.mean(passes):5.3f}",
            *([f"any of M {np.mean(list(map(is_solved, trees))):5.3f}"] if _has_more_than_roots(trees) else []),
            f"with signal {np.mean([has_signal(tree) for tree in trees]):5.3f}",
            *([f"forked {np.mean([node.decision.children > 0 for node in decided]):4.2f}"] if decided else []),
            f"{len(trees)} question{'s' * (len(trees) > 1)}",
        ]
    )


def first_batch_warnings(
    trees: Sequence[QuestionTree], nodes: Sequence[ExaminedNode], branching: str, no_signal: str
) -> Iterator[str]:
    """At most one sentence if the updates have nothing to learn from, and one if nothing forks.

    Args:
        nodes: the examined nodes of the trees.
        branching: the name of the fork rule.
        no_signal: if no question has a signal: the likely cause, and what to do.
    """
    trajectories = [trajectory for tree in trees for trajectory in tree.trajectories]
    # A user's environment may reward right trajectories without reporting an accuracy.
    highest = max(float(tree.returns().max()) for tree in trees)
    if not any(has_signal(tree) for tree in trees):
        yield f"No question of the first batch has returns that differ, so the model learns nothing: {no_signal}."
    elif not any(trajectory.accuracy > 0 for trajectory in trajectories) and highest <= 0:
        yield (
            f"None of the {len(trajectories)} trajectories of the first batch is right, so the model can learn the "
            "format at most: cold-start the model, or ask easier questions."
        )
    has_forks = any(tree.forks() for tree in trees)
    if branching == "never" or has_forks or not _has_more_than_roots(trees):
        return
    if not nodes:
        yield "No trajectory of the first batch goes on after a tool's response, so nothing forks."
    # A response is not decided if, for example, the environment has refused the first fork, or roots were cut off.
    elif (decided := _decided(nodes)) and branching in rules_with("branch_threshold"):
        yield (
            f"None of the {len(decided)} tool responses of the first batch forks: branch_threshold is too high; "
            'lower it ("auto" follows dH from now on).'
        )


def _decided(nodes: Sequence[ExaminedNode]) -> list[ExaminedNode]:
    return [node for node in nodes if node.decision.eligible]


def _has_more_than_roots(trees: Sequence[QuestionTree]) -> bool:
    return any(len(tree.trajectories) > len(tree.initial()) for tree in trees)
