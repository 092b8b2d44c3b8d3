"""A problem small enough to enumerate every trajectory, and every tree of trajectories, that can be sampled from it.

The policy is a table of logits over V tokens, one row per history of generated tokens. A trajectory has at most
`num_turns` turns of `turn_tokens` tokens; between two turns a tool answers. With `can_stop`, token 0 as the first token
of a turn answers at once. The reward is a table over finished histories; with `pays_turns` also each turn before is
paid.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import torch

History = tuple[int, ...]


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
    pays_turns: bool = False

    def finished(self, history: History) -> bool:
        if len(history) == self.num_turns * self.turn_tokens:
            return True
        starts_a_turn = len(history) % self.turn_tokens == 1 % self.turn_tokens
        return self.can_stop and starts_a_turn and history[-1:] == (0,)

    def paid(self, history: History) -> float:
        """The reward for the turn with which `history` ends."""
        return self.rewards[history] if self.pays_turns or self.finished(history) else 0.0

    def turns_from(self, history: History) -> list[tuple[History, float]]:
        """(tokens, probability) of every turn that may follow an unfinished `history`."""
        complete, growing = [], [((), 1.0)]
        while growing:
            tokens, probability = growing.pop()
            if len(tokens) == self.turn_tokens or (tokens and self.finished(history + tokens)):
                complete.append((tokens, probability))
            else:
                row = self.probabilities[self.rows[history + tokens]]
                growing += [((*tokens, v), probability * p) for v, p in enumerate(row)]
        return complete


def make_problem(
    seed: int,
    vocab_size: int = 2,
    num_turns: int = 2,
    turn_tokens: int = 1,
    can_stop: bool = False,
    pays_turns: bool = False,
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
        vocab_size, num_turns, turn_tokens, can_stop, rows, logits, p.tolist(), entropies.tolist(), rewards, pays_turns
    )


def exact_gradient(problem: TabularProblem) -> np.ndarray:
    """The policy gradient [R, V] of the expected reward, by differentiating the sum over finished histories."""
    logits = torch.tensor(problem.logits, requires_grad=True)
    log_probs = torch.log_softmax(logits, -1)

    def expected_reward(history: History, log_prob: torch.Tensor) -> torch.Tensor:
        ends_a_turn = (len(history) > 0 and len(history) % problem.turn_tokens == 0) or problem.finished(history)
        paid = log_prob.exp() * problem.paid(history) if ends_a_turn else 0.0
        if problem.finished(history):
            return paid
        row = log_probs[problem.rows[history]]
        return paid + sum(expected_reward((*history, v), log_prob + row[v]) for v in range(problem.vocab_size))

    expected_reward((), torch.zeros((), dtype=torch.float64)).backward()
    return logits.grad.numpy()
