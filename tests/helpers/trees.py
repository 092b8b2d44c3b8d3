"""Random trajectory trees for property tests, and short builders for trees written by hand."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from hypothesis import strategies as st

from rllib_arpo.core.tree import (
    MASKED_STOP_REASONS,
    QuestionTree,
    StopReason,
    ToolCall,
    ToolStatus,
    Trajectory,
    Turn,
    context_after,
)

_COUNTING_STOP_REASONS = tuple(reason for reason in StopReason if reason not in MASKED_STOP_REASONS)
_MASKED_STOP_REASONS = tuple(sorted(MASKED_STOP_REASONS))


def make_turn(
    token_ids: Sequence[int], observation: Sequence[int] = (), log_prob: float = -1.0, entropy: float = 1.0, **more
) -> Turn:
    """A turn by hand: every token has the same log-prob and entropy; `more` has further fields."""
    n = len(token_ids)
    fields = {
        "token_ids": np.asarray(token_ids, dtype=np.int32),
        "log_probs": np.full(n, log_prob, dtype=np.float32),
        "entropies": np.full(n, entropy, dtype=np.float32),
        "observation": np.asarray(observation, dtype=np.int32),
        "weight_versions": np.zeros(n, dtype=np.int32),
        "tool_call": ToolCall("python", ToolStatus.OK, 0.0) if len(observation) else None,
    }
    return Turn(**fields | more)


def paid(turns: Sequence[Turn], reward: float) -> tuple[Turn, ...]:
    """These turns; the environment pays `reward` for the last of them."""
    return (*turns[:-1], replace(turns[-1], reward=reward)) if turns else ()


def make_trajectory(
    agent_id: str,
    turns: Sequence[Turn],
    reward: float = 0.0,
    num_inherited_turns: int = 0,
    stop_reason: StopReason = StopReason.ANSWER,
) -> Trajectory:
    """A trajectory by hand, paid at its end; its parent follows from its id ("0.1" was forked from "0")."""
    parent = agent_id.rpartition(".")[0] or None
    return Trajectory(
        agent_id, paid(turns, reward), stop_reason, parent=parent, num_inherited_turns=num_inherited_turns
    )


def endings(tree: QuestionTree) -> tuple[StopReason, ...]:
    """The stop reason of each trajectory."""
    return tuple(trajectory.stop_reason for trajectory in tree.trajectories)


def make_tree(prompt: Sequence[int], trajectories: Sequence[Trajectory], question_id: str = "q") -> QuestionTree:
    """A tree by hand."""
    return QuestionTree(question_id, np.asarray(prompt, dtype=np.int32), tuple(trajectories))


def _with_unique_tokens(tree: QuestionTree) -> QuestionTree:
    """The same tree in which no two tokens are equal."""
    counter = iter(range(10**6))

    def rename(tokens: np.ndarray) -> np.ndarray:
        return np.array([next(counter) for _ in tokens], dtype=np.int32)

    def renamed(turn: Turn) -> Turn:
        return replace(turn, token_ids=rename(turn.token_ids), observation=rename(turn.observation))

    prompt = rename(tree.prompt)
    trajectories = tuple(replace(t, turns=tuple(map(renamed, t.turns))) for t in tree.trajectories)
    return replace(tree, prompt=prompt, trajectories=trajectories)


@dataclass(frozen=True, kw_only=True)
class RandomTrees:
    """Random trees: nested forks, several forks of one node, forks after the first and after the last own turn.

    Attributes:
        vocab_size: of the token ids.
        max_prompt_tokens: the prompt has 1 .. max_prompt_tokens tokens.
        max_roots: 1 .. max_roots roots, each with 1 .. max_turns turns.
        max_turns: own turns of a trajectory, at most.
        max_forks: 0 .. max_forks forked trajectories, each forked from any earlier trajectory at one of its own turns.
        max_turn_tokens: generated tokens of a turn, at most.
        max_observation_tokens: tokens of a tool response, at most.
        entropy_window: k, the length of `Turn.entropies` where the turn is long enough.
        empty_probability: of a turn without generated tokens, and of a tool response without tokens.
        zero_turn_probability: of a fork that ends before it generates anything.
        masked_probability: of a stop reason that takes the trajectory out of the mean and the loss.
        trailing_observation_probability: of a tool response after a trajectory's last turn.
        paid_turn_probability: of a reward for a turn that is not the last.
        new_context_probability: of a tool response that is a new context (`Turn.new_context`), and begins like any
            place of its path.
        unique_tokens: no two tokens are equal but those with which new contexts begin, so that a token id names one
            place in the tree; otherwise token ids are drawn from [0, vocab_size).
    """

    vocab_size: int = 50
    max_prompt_tokens: int = 5
    max_roots: int = 3
    max_turns: int = 3
    max_forks: int = 4
    max_turn_tokens: int = 4
    max_observation_tokens: int = 3
    entropy_window: int = 2
    empty_probability: float = 0.1
    zero_turn_probability: float = 0.1
    masked_probability: float = 0.0
    trailing_observation_probability: float = 0.2
    paid_turn_probability: float = 0.0
    new_context_probability: float = 0.0
    unique_tokens: bool = False

    def tree(self, rng: np.random.Generator) -> QuestionTree:
        num_roots = rng.integers(1, self.max_roots + 1)
        trajectories = [self._trajectory(rng, str(i), self._num_turns(rng)) for i in range(num_roots)]
        for _ in range(rng.integers(self.max_forks + 1)):
            trajectories += self._fork(rng, trajectories)
        num_prompt_tokens = rng.integers(1, self.max_prompt_tokens + 1)
        prompt = rng.integers(self.vocab_size, size=num_prompt_tokens, dtype=np.int32)
        tree = QuestionTree("random", prompt, tuple(trajectories))
        if self.unique_tokens:
            tree = _with_unique_tokens(tree)
        return self._with_new_contexts(rng, tree) if self.new_context_probability else tree

    def _with_new_contexts(self, rng: np.random.Generator, tree: QuestionTree) -> QuestionTree:
        for i, trajectory in enumerate(tree.trajectories):
            for own, turn in enumerate(trajectory.turns):
                if turn.tool_call is None or rng.random() >= self.new_context_probability:
                    continue
                path = tree.path(trajectory.agent_id)[: trajectory.num_inherited_turns + own + 1]
                k = int(rng.integers(len(path)))
                written = np.concatenate([context_after(tree.prompt, path[:k]), path[k].token_ids])
                observation = np.concatenate([written[: rng.integers(len(written) + 1)], turn.observation])
                turns = list(tree.trajectories[i].turns)
                turns[own] = replace(turn, observation=observation, new_context=True)
                changed = replace(trajectory, turns=tuple(turns))
                tree = replace(tree, trajectories=(*tree.trajectories[:i], changed, *tree.trajectories[i + 1 :]))
        return tree

    def _fork(self, rng: np.random.Generator, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """A fork of any of the `trajectories`; none where the drawn one called no tool in a turn of its own."""
        parent = trajectories[rng.integers(len(trajectories))]
        nodes = [i for i, own in enumerate(parent.turns) if own.tool_call is not None]
        if not nodes:
            return []
        inherited = parent.num_inherited_turns + int(rng.choice(nodes)) + 1
        num_turns = 0 if rng.random() < self.zero_turn_probability else self._num_turns(rng)
        rank = sum(t.parent == parent.agent_id for t in trajectories)
        return [self._trajectory(rng, f"{parent.agent_id}.{rank}", num_turns, parent.agent_id, inherited)]

    def _trajectory(
        self,
        rng: np.random.Generator,
        agent_id: str,
        num_turns: int,
        parent: str | None = None,
        num_inherited_turns: int = 0,
    ) -> Trajectory:
        last_observed = rng.random() < self.trailing_observation_probability
        masked = rng.random() < self.masked_probability
        reward = float(rng.choice([-1.0, 0.0, 0.5, 1.0, 1.1]))
        return Trajectory(
            agent_id=agent_id,
            turns=paid(
                [self._turn(rng, observed=i + 1 < num_turns or last_observed) for i in range(num_turns)], reward
            ),
            stop_reason=StopReason(rng.choice(_MASKED_STOP_REASONS if masked else _COUNTING_STOP_REASONS)),
            accuracy=max(0.0, min(1.0, reward)),
            format_valid=reward >= 0.0,
            parent=parent,
            num_inherited_turns=num_inherited_turns,
        )

    def _turn(self, rng: np.random.Generator, observed: bool) -> Turn:
        token_ids = self._tokens(rng, self.max_turn_tokens)
        n = len(token_ids)
        is_paid = self.paid_turn_probability and rng.random() < self.paid_turn_probability
        return Turn(
            token_ids=token_ids,
            log_probs=-rng.exponential(size=n).astype(np.float32),
            entropies=rng.uniform(0.0, np.log(self.vocab_size), min(self.entropy_window, n)).astype(np.float32),
            observation=self._tokens(rng, self.max_observation_tokens) if observed else np.zeros(0, dtype=np.int32),
            weight_versions=rng.integers(3, size=n, dtype=np.int32),
            tool_call=ToolCall("python", ToolStatus.OK, 0.0) if observed else None,
            reward=float(rng.choice([0.25, -0.5])) if is_paid else 0.0,
        )

    def _tokens(self, rng: np.random.Generator, at_most: int) -> np.ndarray:
        n = 0 if rng.random() < self.empty_probability else rng.integers(1, at_most + 1)
        return rng.integers(self.vocab_size, size=n, dtype=np.int32)

    def _num_turns(self, rng: np.random.Generator) -> int:
        return int(rng.integers(1, self.max_turns + 1))


def random_tree(rng: np.random.Generator, **options) -> QuestionTree:
    """A random tree, all of whose randomness comes from `rng`; the options are those of `RandomTrees`."""
    return RandomTrees(**options).tree(rng)


def trees(**options) -> st.SearchStrategy[QuestionTree]:
    """Hypothesis strategy over `random_tree(rng, **options)`."""
    return st.integers(0, 2**32 - 1).map(lambda seed: random_tree(np.random.default_rng(seed), **options))


def assert_same(a: QuestionTree, b: QuestionTree) -> None:
    """All of two trees, their trajectories in the same order."""
    np.testing.assert_equal(asdict(a), asdict(b))
