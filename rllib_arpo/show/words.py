"""A question, a trajectory, a turn and a fork decision in words."""

from collections.abc import Mapping
from typing import Any

from rllib_arpo.core.branching import rule_in_words
from rllib_arpo.record.read import Question, Row, Trajectory
from rllib_arpo.record.schema import BENCHMARK, FAILED, TRAINING

_TIMES = {0: "not forked", 1: "forked once", 2: "forked twice"}


def number(value: float | None, spec: str = "+.2f") -> str:
    """A number with a true minus sign; "–" for None."""
    return "–" if value is None else format(value, spec).replace("-", "−")


def tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def name_of(question: Question) -> str:
    """E.g. "evaluation after 8 updates"."""
    return name_of_stage(question.row["purpose"], question.row["iteration"])


def name_of_stage(purpose: str, iteration: int) -> str:
    if purpose == TRAINING:
        return f"training, iteration {iteration}"
    if purpose == FAILED:
        return f"the end of the run, iteration {iteration}"
    if purpose == BENCHMARK:
        return "benchmark"
    return "evaluation before training" if iteration == 0 else f"evaluation after {iteration} updates"


def origin(trajectory: Trajectory) -> str:
    """The place at which a trajectory begins."""
    row = trajectory.row
    if row["parent"] is not None:
        return f"forked from {row['parent']} after turn {row['inherited_turns']}"
    return "a top-up from the prompt" if row["topped_up"] else "from the prompt"


def ending(trajectory: Trajectory) -> str:
    """The ending and the earnings of a trajectory: "answer, reward +1.00, A +0.87"."""
    row = trajectory.row
    parts = [row["stop_reason"].replace("_", " ")]
    if not row["counts"]:
        return f"{parts[0]}, masked"
    parts.append(f"reward {number(row['reward'])}")
    if row["advantage"] is not None:
        parts.append(f"A {number(row['advantage'])}")
    return ", ".join(parts)


def call(turn: Row) -> str:
    """The tool call of a turn: "search: ok, 0.50 s"; empty without one."""
    if turn["tool"] is None:
        return ""
    return f"{turn['tool'] or 'a tool'}: {turn['tool_status']}, {turn['tool_seconds']:.2f} s"


def new_context(turn: Row) -> str:
    """What the model read after a turn, if that was a new context; otherwise empty."""
    return f"a new context of {tokens(turn['tool_output_tokens'])}" if turn["new_context"] else ""


def advantages(turn: Row) -> str:
    """The advantages of a turn's tokens; empty if the question was not trained."""
    if turn["leaves"] is None:
        return ""
    if not turn["leaves"]:
        return "No trajectory that counts passes this turn."
    positive, negative = (turn[name] / turn["weight"] for name in ("soft_positive", "soft_negative"))
    leaves = "1 leaf" if turn["leaves"] == 1 else f"{turn['leaves']} leaves"
    return (
        f"Advantage of its tokens, {leaves} below: soft {number(positive)} and {number(negative)} (means of the "
        f"positive and the negative parts), hard {number(turn['hard_advantage'])}."
    )


def decision(turn: Row, trajectory: Trajectory, question: Question) -> str:
    """The decision at the node before a turn, and its reason: "dH = +0.21, forks at every node: forked once, ..."."""
    if turn["delta"] is None:
        return _undecided(turn, trajectory, question)
    rise = f"dH = {number(turn['delta'])}"
    budget = question.fork_budget()
    if trajectory.row["topped_up"]:
        return f"{rise}: not decided, since a top-up is not forked."
    if not budget:
        return f"{rise}: not decided, since this question has no forks."
    if not turn["eligible"]:
        reasons = f"no fork of {budget} was left, a fork was refused, or the question ended first"
        return f"{rise}: not decided: {reasons}."
    children = turn["children"]
    forked = _TIMES.get(children, f"forked {children} times")
    return f"{_reason(turn, rise, question.settings)}: {forked}, {turn['budget'] - children} of {budget} left."


def _undecided(turn: Row, trajectory: Trajectory, question: Question) -> str:
    if turn["depth"] == 0:
        return "The prompt precedes this turn: there is nothing to decide."
    if turn["turn"] == 0:
        parent = question.trajectory(trajectory.row["parent"])
        if parent.depth_at_end() <= turn["depth"]:
            return f"This trajectory was forked here; {parent.agent_id} was cut off in the turn that decided it."
        return f"This trajectory was forked here; the decision stands at the turn of {parent.agent_id}."
    return "The node before this turn was not examined."


def _reason(turn: Row, rise: str, settings: Mapping[str, Any]) -> str:
    if turn["probability"] is not None:
        alpha, beta = settings["branch_base_probability"], settings["branch_entropy_weight"]
        penalty = " with the penalty for forks in a row" if settings["consecutive_fork_penalty"] else ""
        rise += f", P = {number(turn['probability'], '.3f')} (from {alpha:g} + {beta:g} dH{penalty})"
    return f"{rise}, forks {rule_in_words(settings)}"
