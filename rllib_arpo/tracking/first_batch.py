"""What the first batch says of a model and a task before the first update: a line, and warnings. Pure functions."""

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
#: The trajectories of a question should solve this much more than a greedy one does.
MIN_HEADROOM = 0.1
#: Nats between the 10 % and the 90 % quantile of the entropies after tool responses.
MIN_SPREAD = 0.001


def first_batch_line(trees: Sequence[QuestionTree], nodes: Sequence[ExaminedNode]) -> str:
    """E.g. "sampled     accuracy 0.167  pass@2 0.333  any of M 0.667  with signal 0.500  forked 0.31  6 questions".

    Accuracy and pass@k are of the trajectories that began at the prompt, top-ups left out, since a fork shares the
    beginning of its parent; k is how many of them each question has. "any of M" is the share of the questions with a
    right trajectory, forks included; "with signal" that of the questions with returns that differ; "forked" that of the
    tool responses that were decided. Without forks the line leaves out "any of M" and "forked".
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
    """The mean over questions, of the trajectories that began at the prompt."""
    return float(np.mean([np.mean([trajectory.accuracy for trajectory in tree.initial()]) for tree in trees]))


def first_batch_warnings(
    trees: Sequence[QuestionTree],
    nodes: Sequence[ExaminedNode],
    greedy: float | None,
    branching: str,
    no_signal: str,
) -> Iterator[str]:
    """At most one sentence about the updates, and one about the forks, where they have nothing to work with.

    Args:
        nodes: those of the trees that were examined.
        greedy: the accuracy of the evaluation before training; None: there was none.
        branching: the name of the fork rule.
        no_signal: the likely cause if no question has a signal, and what to do.
    """
    solved = estimate_all({"": np.array(list(map(is_solved, trees)), dtype=float)})[""]
    trajectories = [trajectory for tree in trees for trajectory in tree.trajectories]
    # Own environments may pay for right trajectories without telling an accuracy.
    highest = max(float(tree.returns().max()) for tree in trees)
    if not any(has_signal(tree) for tree in trees):
        yield f"No question of the first batch has returns that differ, so that nothing is learned: {no_signal}."
    elif not any(trajectory.accuracy > 0 for trajectory in trajectories) and highest <= 0:
        yield (
            f"None of the {len(trajectories)} trajectories of the first batch is right, so that at most the format can "
            "be learned: cold-start the model, or ask easier questions."
        )
    elif sampled_accuracy(trees) >= NEARLY_SOLVED:
        yield (
            f"The sampled accuracy of the first batch is {sampled_accuracy(trees):.2f}, so that little can be learned: "
            "ask harder questions."
        )
    elif greedy is not None and solved.high is not None and solved.high < greedy + MIN_HEADROOM:
        yield (
            f"All trajectories of a question together solve {solved.value:.2f} of the first batch, and one alone "
            f"solves {greedy:.2f} of the evaluation, so that there is little to find: sample more rollouts, or ask "
            "harder questions."
        )
    if branching != "never" and _has_more_than_roots(trees):
        yield from _fork_warnings(trees, nodes, branching)


def _fork_warnings(trees: Sequence[QuestionTree], nodes: Sequence[ExaminedNode], branching: str) -> Iterator[str]:
    """More forks than the entropy can choose is a warning of every iteration (`IterationLog.forks`)."""
    decided = _decided(nodes)
    entropies = [node.entropy for node in nodes if node.on_policy]
    if not (nodes or any(tree.forks() for tree in trees)):
        yield "No trajectory of the first batch goes on after a tool's response, so that nothing forks."
    elif not (decided and entropies and reads_p(branching)):
        # The environment may have refused the first fork, and roots may be cut off.
        return
    elif (spread := float(np.ptp(np.quantile(entropies, (0.1, 0.9))))) < MIN_SPREAD:
        yield (
            f"The entropy hardly differs between tool responses (by {spread:.1g} nats from the 10 % to the 90 % "
            "quantile), so that it cannot choose forks: look at temperature and entropy_window."
        )
    elif branching in rules_with("branch_threshold") and not any(tree.forks() for tree in trees):
        yield (
            f"None of the {len(decided)} tool responses of the first batch forks: branch_threshold is too high; with "
            '"auto" it follows dH from now on.'
        )


def _decided(nodes: Sequence[ExaminedNode]) -> list[ExaminedNode]:
    return [node for node in nodes if node.decision.eligible]


def _has_more_than_roots(trees: Sequence[QuestionTree]) -> bool:
    return any(len(tree.trajectories) > len(tree.initial()) for tree in trees)
