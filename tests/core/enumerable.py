"""A problem small enough to enumerate: every tree that ARPO can sample from it, with its probability.

The policy is a table of logits over V tokens, one row per history of generated tokens. A trajectory has at most
`num_turns` turns of `turn_tokens` tokens; between two turns a tool answers. With `can_stop`, token 0 as the first token
of a turn answers at once. The reward is a table over finished histories.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rllib_arpo.core.advantages import ATTRIBUTIONS, leaf_ranges, leaf_weights, loss_denominator
from rllib_arpo.core.branching import BranchingParams, branch_probability, num_forks
from rllib_arpo.core.entropy import entropy_delta
from rllib_arpo.core.tree import QuestionTree, StopReason, ToolCall, ToolStatus, Trajectory, Turn, depth_first_layout

History = tuple[int, ...]

_TOOL_CALL = ToolCall("python", ToolStatus.OK, 0.0)
_RESPONSE, _NOTHING = np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class TabularProblem:
    """`rows` numbers the histories before the last token, R of them; `rewards` is by finished history.

    `logits` is [R, V]; `probabilities` [R][V] and `entropies` [R] (nats) follow from it.
    """

    vocab_size: int
    num_turns: int
    turn_tokens: int
    can_stop: bool
    rows: dict[History, int]
    logits: np.ndarray
    probabilities: list[list[float]]
    entropies: list[float]
    rewards: dict[History, float]

    def finished(self, history: History) -> bool:
        if len(history) == self.num_turns * self.turn_tokens:
            return True
        starts_a_turn = len(history) % self.turn_tokens == 1 % self.turn_tokens
        return self.can_stop and starts_a_turn and history[-1:] == (0,)


def make_problem(
    seed: int, vocab_size: int = 2, num_turns: int = 2, turn_tokens: int = 1, can_stop: bool = False
) -> TabularProblem:
    """Random logits (standard deviation 1.5) and rewards drawn from {-1, 0, 1, 1.1}."""
    rng = np.random.default_rng(seed)
    length = num_turns * turn_tokens
    histories = [h for n in range(length + 1) for h in itertools.product(range(vocab_size), repeat=n)]
    rows = {h: i for i, h in enumerate(h for h in histories if len(h) < length)}
    logits = rng.normal(scale=1.5, size=(len(rows), vocab_size))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    entropies = -(p * np.log(p)).sum(axis=1)
    rewards = {h: float(rng.choice([-1.0, 0.0, 1.0, 1.1])) for h in histories}
    return TabularProblem(
        vocab_size, num_turns, turn_tokens, can_stop, rows, logits, p.tolist(), entropies.tolist(), rewards
    )


def exact_gradient(problem: TabularProblem) -> np.ndarray:
    """The policy gradient [rows, V] of the expected reward, by differentiating the sum over finished histories."""
    logits = torch.tensor(problem.logits, requires_grad=True)
    log_probs = torch.log_softmax(logits, -1)

    def expected_reward(history: History, log_prob: torch.Tensor) -> torch.Tensor:
        if problem.finished(history):
            return log_prob.exp() * problem.rewards[history]
        row = log_probs[problem.rows[history]]
        return sum(expected_reward((*history, v), log_prob + row[v]) for v in range(problem.vocab_size))

    expected_reward((), torch.zeros((), dtype=torch.float64)).backward()
    return logits.grad.numpy()


class Choices:
    """Random choices replayed from a script; beyond its end the first possible outcome is taken."""

    def __init__(self, script: list[int]):
        self.script, self.taken, self.probability = script, [], 1.0
        self.alternatives: list[list[int]] = []

    def choose(self, probabilities: Sequence[float]) -> int:
        if len(self.taken) < len(self.script):
            outcome = self.script[len(self.taken)]
        else:
            outcome, *others = (i for i, p in enumerate(probabilities) if p > 0.0)
            self.alternatives += [[*self.taken, i] for i in others]
        self.taken.append(outcome)
        self.probability *= probabilities[outcome]
        return outcome


@dataclass(frozen=True, slots=True)
class ForkDraws:
    """Stands in for the generator of `num_forks`: every draw is below `p` with probability p, else above it."""

    choices: Choices
    p: float

    def random(self, size: int | None = None) -> float | np.ndarray:
        if size is not None:
            return np.array([self.random() for _ in range(size)])
        return 0.0 if self.choices.choose([self.p, 1.0 - self.p]) == 0 else 1.0


def _draw_probability(delta: float, params: BranchingParams) -> float:
    """The probability that the rule compares its draws with; any value does for a rule that does not draw."""
    if params.branching == "random":
        return params.random_fork_probability
    return min(max(branch_probability(delta, params), 0.0), 1.0)


def enumerate_outcomes(sample: Callable[[Choices], QuestionTree]) -> Iterator[tuple[float, QuestionTree]]:
    """Every outcome of `sample` with its probability."""
    scripts: list[list[int]] = [[]]
    while scripts:
        choices = Choices(scripts.pop())
        outcome = sample(choices)
        scripts += choices.alternatives
        yield choices.probability, outcome


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Rule and budget of the rollout; `budget` is M - N, `top_up` whether the rest of it becomes fresh roots."""

    params: BranchingParams
    num_initial_rollouts: int = 2
    budget: int = 10**6
    entropy_window: int = 1
    top_up: bool = False


def sample_tree(problem: TabularProblem, settings: RolloutSettings, choices: Choices) -> QuestionTree:
    """docs/design.md's adaptive rollout, one trajectory after the other; budget is first come, first served."""
    trajectories: list[Trajectory] = []
    budget = settings.budget
    # (agent id, parent, inherited turns, history, H_initial, whether its nodes may fork)
    waiting = [(str(i), None, 0, (), None, True) for i in range(settings.num_initial_rollouts)]
    topped_up = False
    while waiting:
        agent_id, parent, inherited, history, initial, may_fork = waiting.pop(0)
        turns: list[Turn] = []
        num_children = 0
        while not problem.finished(history):
            before = history
            history, turn = _sample_turn(problem, history, settings.entropy_window, choices)
            turns.append(turn)
            if initial is None:
                initial = turn.entropies
            elif len(turns) > 1 and may_fork:
                delta = entropy_delta(turn.entropies, initial, problem.vocab_size)
                draws = ForkDraws(choices, _draw_probability(delta, settings.params))
                children = num_forks(delta, budget, settings.params, draws)
                budget -= children
                for _ in range(children):
                    child = f"{agent_id}.{num_children}"
                    waiting.append((child, agent_id, inherited + len(turns) - 1, before, initial, True))
                    num_children += 1
        trajectories.append(
            Trajectory(
                agent_id,
                tuple(turns),
                StopReason.ANSWER,
                problem.rewards[history],
                parent=parent,
                num_inherited_turns=inherited,
            )
        )
        if not waiting and settings.top_up and not topped_up:
            topped_up = True
            roots = settings.num_initial_rollouts
            waiting = [(str(roots + i), None, 0, (), None, False) for i in range(budget)]
    return QuestionTree("enumerable", _RESPONSE, tuple(trajectories))


def _sample_turn(
    problem: TabularProblem, history: History, entropy_window: int, choices: Choices
) -> tuple[History, Turn]:
    tokens, entropies = [], []
    while len(tokens) < problem.turn_tokens:
        row = problem.rows[history]
        entropies.append(problem.entropies[row])
        tokens.append(choices.choose(problem.probabilities[row]))
        history = (*history, tokens[-1])
        if problem.finished(history):
            break
    finished = problem.finished(history)
    return history, Turn(
        token_ids=np.array(tokens, dtype=np.int32),
        log_probs=np.zeros(len(tokens), dtype=np.float32),
        entropies=np.array(entropies[:entropy_window]),
        observation=_NOTHING if finished else _RESPONSE,
        weight_versions=np.zeros(len(tokens), dtype=np.int32),
        tool_call=None if finished else _TOOL_CALL,
    )


@dataclass(frozen=True, slots=True)
class Estimator:
    """How the learner turns a tree into a gradient: `advantages` is `rewards[L] -> [L]`."""

    leaf_weighting: str
    advantages: Callable[[np.ndarray], np.ndarray] = np.asarray


def estimated_gradient(problem: TabularProblem, tree: QuestionTree, estimator: Estimator) -> np.ndarray:
    """The learner's gradient [rows, V] of one tree at ratio 1; every token of a leaf weighs the same."""
    layout = depth_first_layout(tree)
    advantages = estimator.advantages(np.array([tree.trajectories[i].reward for i in layout.leaves]))
    weights = leaf_weights(tree, layout, "constant", estimator.leaf_weighting, max_response_tokens=1)
    nodes = ATTRIBUTIONS["soft"](advantages, weights, *leaf_ranges(layout))
    per_node = (nodes.a_pos + nodes.a_neg) / loss_denominator(tree, layout, "constant", estimator.leaf_weighting)

    taken = np.zeros_like(problem.logits)
    histories: list[History] = []
    for node, advantage in zip(layout.nodes, per_node, strict=True):
        history = histories[node.parent] if node.parent >= 0 else ()
        for token in tree.trajectories[node.trajectory].turns[node.turn].token_ids.tolist():
            taken[problem.rows[history], token] += advantage
            history = (*history, token)
        histories.append(history)
    # The gradient of ln pi(token | history) by the logits of its row is onehot(token) - pi(. | history).
    return taken - taken.sum(axis=1, keepdims=True) * problem.probabilities


def _up_to_the_order_of_roots(tree: QuestionTree) -> tuple:
    """Equal for two trees if one is the other with its roots permuted: their gradients are equal."""
    subtrees: dict[str, list[tuple]] = {}
    for t in tree.trajectories:
        root, _, rest = t.agent_id.partition(".")
        own_tokens = tuple(turn.token_ids.tobytes() for turn in t.turns)
        subtrees.setdefault(root, []).append((rest, t.num_inherited_turns, own_tokens))
    return tuple(sorted(tuple(subtree) for subtree in subtrees.values()))


def expected_gradients(
    problem: TabularProblem, settings: RolloutSettings, estimators: Sequence[Estimator]
) -> list[np.ndarray]:
    """E[estimated gradient] of each estimator over every tree that the rollout can sample, exactly."""
    distribution: dict[tuple, tuple[float, QuestionTree]] = {}
    for probability, tree in enumerate_outcomes(lambda choices: sample_tree(problem, settings, choices)):
        key = _up_to_the_order_of_roots(tree)
        distribution[key] = (probability + distribution.get(key, (0.0, tree))[0], tree)
    mass = sum(probability for probability, _ in distribution.values())
    assert abs(mass - 1.0) < 1e-9, f"the probabilities of all trees add up to {mass}"
    return [
        sum(probability * estimated_gradient(problem, tree, estimator) for probability, tree in distribution.values())
        for estimator in estimators
    ]
