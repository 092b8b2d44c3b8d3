"""Puts a question, a trajectory, a turn and a fork decision into words."""

from collections.abc import Mapping
from typing import Any

from rllib_arpo.core.branching import rule_in_words
from rllib_arpo.core.tree import ForkDecision, Trajectory
from rllib_arpo.record.question import PlacedTurn, RecordedQuestion
from rllib_arpo.record.schema import BENCHMARK, FAILED, TRAINING

_TIMES = {0: "not forked", 1: "forked once", 2: "forked twice"}


def number(value: float | None, spec: str = "+.2f") -> str:
    """A number with a real minus sign; "–" for None."""
    return "–" if value is None else format(value, spec).replace("-", "−")


def tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def name_of(question: RecordedQuestion) -> str:
    """E.g. "evaluation after 8 updates"."""
    purpose, iteration = question.facts.purpose, question.facts.iteration
    if purpose == TRAINING:
        return f"training, iteration {iteration}"
    if purpose == FAILED:
        return f"the end of the run, iteration {iteration}"
    if purpose == BENCHMARK:
        return "benchmark"
    return "evaluation before training" if iteration == 0 else f"evaluation after {iteration} updates"


def origin(trajectory: Trajectory) -> str:
    """Where a trajectory begins."""
    if trajectory.parent is not None:
        return f"forked from {trajectory.parent} after turn {trajectory.num_inherited_turns}"
    return "a top-up from the prompt" if trajectory.topped_up else "from the prompt"


def ending(question: RecordedQuestion, trajectory: Trajectory) -> str:
    """How a trajectory ended and what it earned: "answer, reward +1.00, A +0.87"."""
    parts = [trajectory.stop_reason.replace("_", " ")]
    if not trajectory.counts:
        return f"{parts[0]}, masked"
    parts.append(f"reward {number(question.tree.return_of(trajectory.agent_id))}")
    if (advantage := question.advantage(trajectory)) is not None:
        parts.append(f"A {number(advantage)}")
    return ", ".join(parts)


def call(placed: PlacedTurn) -> str:
    """The tool call of a turn: "search: ok, 0.50 s"; empty without one."""
    made = placed.turn.tool_call
    return "" if made is None else f"{made.name or 'a tool'}: {made.status}, {made.latency_s:.2f} s"


def new_context(placed: PlacedTurn) -> str:
    """The new context that the model read after a turn; empty if there was none."""
    turn = placed.turn
    return f"a new context of {tokens(len(turn.observation))}" if turn.new_context else ""


def advantages(placed: PlacedTurn) -> str:
    """The advantages of a turn's tokens; empty if the question was not trained."""
    own = placed.advantages
    if own is None:
        return ""
    if not own.leaves:
        return "No trajectory that counts passes this turn."
    leaves = "1 leaf" if own.leaves == 1 else f"{own.leaves} leaves"
    return (
        f"Advantage of its tokens, {leaves} below: soft {number(own.soft_positive / own.weight)} and "
        f"{number(own.soft_negative / own.weight)} (means of the positive and the negative parts), hard "
        f"{number(own.hard_advantage)}."
    )


def decision(placed: PlacedTurn) -> str:
    """The fork decision before a turn with its reason: "dH = +0.21, forks at every node: forked once, ..."."""
    decided, settings = placed.turn.decision, placed.question.settings
    if decided is None:
        return _undecided(placed)
    rise = f"dH = {number(decided.delta)}"
    budget = placed.question.fork_budget()
    if placed.trajectory.topped_up:
        return f"{rise}: not decided, since a top-up is not forked."
    if not budget:
        return f"{rise}: not decided, since this question has no forks."
    if not decided.eligible:
        reasons = f"no fork of {budget} was left, a fork was refused, or the question ended first"
        return f"{rise}: not decided: {reasons}."
    forked = _TIMES.get(decided.children, f"forked {decided.children} times")
    return f"{_reason(decided, settings)}: {forked}, {decided.budget - decided.children} of {budget} left."


def _undecided(placed: PlacedTurn) -> str:
    if placed.depth == 0:
        return "The prompt precedes this turn, so there is nothing to decide."
    if placed.own == 0:
        parent = placed.question.tree.by_id()[placed.trajectory.parent or ""]
        if parent.num_path_turns <= placed.depth:
            return f"This trajectory was forked here; {parent.agent_id} was cut off in the turn that decided it."
        return f"This trajectory was forked here; see the decision at the turn of {parent.agent_id}."
    return "The node before this turn was not examined."


def _reason(decided: ForkDecision, settings: Mapping[str, Any]) -> str:
    rise = f"dH = {number(decided.delta)}"
    if decided.probability is not None:
        alpha, beta = settings["branch_base_probability"], settings["branch_entropy_weight"]
        penalty = " with the penalty for forks in a row" if settings["consecutive_fork_penalty"] else ""
        rise += f", P = {number(decided.probability, '.3f')} (from {alpha:g} + {beta:g} dH{penalty})"
    return f"{rise}, forks {rule_in_words(settings)}"
