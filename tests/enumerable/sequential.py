"""The adaptive rollout of docs/design.md as slowly and plainly as it can be said: one trajectory after the other."""

from collections.abc import Callable

import numpy as np

from rllib_arpo.core.tree import QuestionTree, StopReason, Trajectory, Turn
from tests.enumerable.choices import Choices
from tests.enumerable.distribution import Distribution
from tests.enumerable.problem import History, TabularProblem

#: `(mean rise in nats, choices) -> children wanted`.
Rule = Callable[[float, Choices], int]

_NOTHING = np.zeros(0, dtype=np.int32)


def sequential_distribution(
    problem: TabularProblem, rule: Rule, *, roots: int = 2, budget: int = 10**6, window: int = 1, top_up: bool = False
) -> Distribution:
    """Every tree of `sample_sequentially`, with its probability."""
    distribution = Distribution()
    scripts: list[list[int]] = [[]]
    while scripts:
        choices = Choices(scripts.pop())
        tree = sample_sequentially(problem, rule, choices, roots, budget, window, top_up)
        scripts += choices.alternatives
        distribution.add(choices, tree)
    distribution.check()
    return distribution


def sample_sequentially(
    problem: TabularProblem, rule: Rule, choices: Choices, roots: int, budget: int, window: int, top_up: bool
) -> QuestionTree:
    """One tree. A trajectory's forks wait until it, and all that waited before them, has ended."""
    trajectories: list[Trajectory] = []
    # (agent id, parent, inherited turns, history, H_initial, whether its nodes may fork)
    waiting = [(str(i), None, 0, (), None, True) for i in range(roots)]
    while waiting:
        agent_id, parent, inherited, history, initial, may_fork = waiting.pop(0)
        turns: list[Turn] = []
        num_children = 0
        while not problem.finished(history):
            before = history
            history, tokens, entropies = _sample_turn(problem, history, choices)
            turns.append(Turn(tokens, _NOTHING, _NOTHING, _NOTHING, _NOTHING, reward=problem.paid(history)))
            if initial is None:
                initial = entropies
            elif len(turns) > 1 and may_fork:
                children = min(budget, rule(_mean_rise(entropies[:window], initial[:window]), choices)) if budget else 0
                budget -= children
                for _ in range(children):
                    child = f"{agent_id}.{num_children}"
                    waiting.append((child, agent_id, inherited + len(turns) - 1, before, initial, True))
                    num_children += 1
        trajectories.append(
            Trajectory(agent_id, tuple(turns), StopReason.ANSWER, parent=parent, num_inherited_turns=inherited)
        )
        if not waiting and top_up:
            top_up = False
            waiting = [(str(roots + i), None, 0, (), None, False) for i in range(budget)]
    return QuestionTree("sequential", _NOTHING, tuple(trajectories))


def _sample_turn(
    problem: TabularProblem, history: History, choices: Choices
) -> tuple[History, np.ndarray, list[float]]:
    """(the history after the turn, its tokens, their entropies)."""
    tokens, entropies = [], []
    while len(tokens) < problem.turn_tokens and not (tokens and problem.finished(history)):
        row = problem.rows[history]
        entropies.append(problem.entropies[row])
        tokens.append(choices.choose(problem.probabilities[row]))
        history = (*history, tokens[-1])
    return history, np.array(tokens, dtype=np.int32), entropies


def _mean_rise(after: list[float], initial: list[float]) -> float:
    rises = [a - i for a, i in zip(after, initial, strict=False)]
    return sum(rises) / len(rises)
