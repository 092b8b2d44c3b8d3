"""Judges model and task by the first batch, before the first update: a line, and warnings. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rllib_arpo.core.branching import reads_p, rules_with
from rllib_arpo.core.figures import ExaminedNode, has_signal, is_solved
from rllib_arpo.core.intervals import estimate_all
from rllib_arpo.core.pass_at_k import is_correct, pass_at_k
from rllib_arpo.core.tree import QuestionTree

#: From this sampled accuracy on there is little left to learn.
NEARLY_SOLVED = 0.95
#: All trajectories of a question together should solve this much more than greedy decoding.
MIN_HEADROOM = 0.1
#: Minimum distance in nats from the 10 % to the 90 % quantile of the entropies after tool responses.
MIN_SPREAD = 0.001


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
            f"sampled     accuracy {sampled_accuracy(trees):5.3f}",
            f"pass@{k} {np.mean(passes):5.3f}",
            *([f"any of M {np.mean(list(map(is_solved, trees))):5.3f}"] if _has_more_than_roots(trees) else []),
            f"with signal {np.mean([has_signal(tree) for tree in trees]):5.3f}",
            *([f"forked {np.mean([node.decision.children > 0 for node in decided]):4.2f}"] if decided else []),
            f"{len(trees)} question{'s' * (len(trees) > 1)}",
        ]
    )


def sampled_accuracy(trees: Sequence[QuestionTree]) -> float:
    """The mean accuracy over questions, from the trajectories that began at the prompt."""
    return float(np.mean([np.mean([trajectory.accuracy for trajectory in tree.initial()]) for tree in trees]))


def first_batch_warnings(
    trees: Sequence[QuestionTree],
    nodes: Sequence[ExaminedNode],
    greedy: float | None,
    branching: str,
    no_signal: str,
) -> Iterator[str]:
    """At most one sentence if the updates have nothing to learn from, and one if the forks have nothing to choose from.

    Args:
        nodes: the examined nodes of the trees.
        greedy: the accuracy of the evaluation before training; None if there was none.
        branching: the name of the fork rule.
        no_signal: if no question has a signal: the likely cause, and what to do.
    """
    solved = estimate_all({"": np.array(list(map(is_solved, trees)), dtype=float)})[""]
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
    elif sampled_accuracy(trees) >= NEARLY_SOLVED:
        yield (
            f"The sampled accuracy of the first batch is {sampled_accuracy(trees):.2f}, so there is little to learn: "
            "ask harder questions."
        )
    elif greedy is not None and solved.high is not None and solved.high < greedy + MIN_HEADROOM:
        yield (
            f"All trajectories together solve {solved.value:.2f} of the first batch, and greedy decoding solves "
            f"{greedy:.2f} of the evaluation, so there is little to learn: sample more rollouts, or ask harder "
            "questions."
        )
    if branching != "never" and _has_more_than_roots(trees):
        yield from _fork_warnings(trees, nodes, branching)


def _fork_warnings(trees: Sequence[QuestionTree], nodes: Sequence[ExaminedNode], branching: str) -> Iterator[str]:
    """At most one sentence about forks. `IterationLog.forks` warns of too many forks in every iteration."""
    decided = _decided(nodes)
    entropies = [node.entropy for node in nodes if node.on_policy]
    if not (nodes or any(tree.forks() for tree in trees)):
        yield "No trajectory of the first batch goes on after a tool's response, so nothing forks."
    elif not (decided and entropies and reads_p(branching)):
        # For example, the environment has refused the first fork, or roots were cut off.
        return
    elif (spread := float(np.ptp(np.quantile(entropies, (0.1, 0.9))))) < MIN_SPREAD:
        yield (
            f"The entropy hardly differs between tool responses (by {spread:.1g} nats from the 10 % to the 90 % "
            "quantile), so it cannot choose forks: check temperature and entropy_window."
        )
    elif branching in rules_with("branch_threshold") and not any(tree.forks() for tree in trees):
        yield (
            f"None of the {len(decided)} tool responses of the first batch forks: branch_threshold is too high; "
            'lower it ("auto" follows dH from now on).'
        )


def _decided(nodes: Sequence[ExaminedNode]) -> list[ExaminedNode]:
    return [node for node in nodes if node.decision.eligible]


def _has_more_than_roots(trees: Sequence[QuestionTree]) -> bool:
    return any(len(tree.trajectories) > len(tree.initial()) for tree in trees)
