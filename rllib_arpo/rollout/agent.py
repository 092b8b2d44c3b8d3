"""A trajectory while it is being sampled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from rllib_arpo.core.tree import ForkDecision, StopReason, Trajectory, Turn, TurnTimes
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

    def trajectory(self) -> Trajectory:
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
