"""A trajectory while it is being sampled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from rllib_arpo.core.tree import MASKED_STOP_REASONS, ForkDecision, StopReason, Trajectory, Turn, TurnTimes
from rllib_arpo.engine.engine import Finished
from rllib_arpo.envs.forkable_env import StepInfo


@dataclass(slots=True)
class Agent:
    """A trajectory that grows turn by turn; fields that `Trajectory` also has mean the same there.

    Attributes:
        context: the tokens that the model reads before its next turn.
        num_prompt_tokens: how many of the first tokens in `context` are the prompt.
        initial_entropies: the entropies of the root's first tokens, nats; None until they are known.
        decisions: number of turns on the path above a node -> the decision at the node.
        num_children: forks that began on its own turns.
        stop: how it ended; None while it continues.
    """

    agent_id: str
    context: list[int]
    num_prompt_tokens: int
    parent: Agent | None = None
    num_inherited_turns: int = 0
    topped_up: bool = False
    initial_entropies: np.ndarray | None = None
    turns: list[Turn] = field(default_factory=list)
    decisions: dict[int, ForkDecision] = field(default_factory=dict)
    num_children: int = 0
    stop: StepInfo | None = None

    @property
    def num_path_turns(self) -> int:
        return self.num_inherited_turns + len(self.turns)

    @property
    def counts(self) -> bool:
        return self.stop is not None and self.stop.stop_reason not in MASKED_STOP_REASONS

    def path(self, num_turns: int | None = None) -> list[Turn]:
        """All turns from the prompt, inherited ones included, or the first `num_turns` of them."""
        inherited = [] if self.parent is None else self.parent.path(self.num_inherited_turns)
        return (inherited + self.turns)[:num_turns]

    def decision(self, num_turns: int) -> ForkDecision | None:
        """The decision at the node below `num_turns` turns of the path, even if an ancestor owns the node."""
        owner = self
        while owner.parent is not None and num_turns <= owner.num_inherited_turns:
            owner = owner.parent
        return owner.decisions.get(num_turns)

    def consecutive_forks(self, num_turns: int) -> int:
        """The number of forked nodes directly above the node below `num_turns` turns, without a gap."""
        count = 0
        while (above := self.decision(num_turns - 1 - count)) is not None and above.children:
            count += 1
        return count

    def stop_at_deadline(self, reward: float | None, agents: Iterable[Agent]) -> None:
        """[6] masks an unfinished trajectory, or gives its last turn the reward set for this case.

        It always masks a trajectory without a turn of its own, since its ancestors' tokens would get the reward; one
        whose last turn a fork that counts has inherited, since the fork would get the reward as well; and a fork whose
        first turn was not answered, since the environment has not yet confirmed that it equals its parent.

        Args:
            agents: all agents of the question; this one's forks have been stopped before.
        """
        if self.stop is not None:
            return
        times = self.turns[0].times if self.turns else None
        unverified = self.parent is not None and times is not None and times.answered is None
        shared = any(turn is self.turns[-1] for a in agents if self.turns and a.counts for turn in a.path())
        if reward is None or not self.turns or shared or unverified:
            self.stop = StepInfo(stop_reason=StopReason.DEADLINE)
        else:
            self.stop = StepInfo(stop_reason=StopReason.TIME_LIMIT)
            self.turns[-1] = replace(self.turns[-1], reward=self.turns[-1].reward + reward)

    def finished(self) -> Trajectory:
        stop = self.stop
        assert stop is not None
        assert stop.stop_reason is not None
        return Trajectory(
            agent_id=self.agent_id,
            turns=tuple(
                replace(turn, decision=self.decisions.get(self.num_inherited_turns + i))
                for i, turn in enumerate(self.turns)
            ),
            stop_reason=stop.stop_reason,
            accuracy=stop.accuracy,
            format_valid=stop.format_valid,
            parent=self.parent.agent_id if self.parent else None,
            num_inherited_turns=self.num_inherited_turns,
            topped_up=self.topped_up,
        )


def plain_step_info(terminated: bool, truncated: bool) -> StepInfo:
    """Replaces a missing `StepInfo`: a terminated agent has answered, a truncated one hit a limit."""
    if terminated:
        return StepInfo(stop_reason=StopReason.ANSWER, format_valid=True)
    return StepInfo(stop_reason=StopReason.TOKEN_LIMIT if truncated else None)


def turn_of(
    finished: Finished,
    times: TurnTimes,
    observation: np.ndarray | None = None,
    step: StepInfo | None = None,
    reward: float = 0.0,
) -> Turn:
    return Turn(
        token_ids=finished.token_ids,
        log_probs=finished.log_probs,
        entropies=finished.entropies,
        observation=np.zeros(0, np.int32) if observation is None else observation,
        weight_versions=finished.weight_versions,
        tool_call=None if step is None else step.tool_call,
        times=times,
        reward=reward,
        new_context=step is not None and step.new_context,
    )
