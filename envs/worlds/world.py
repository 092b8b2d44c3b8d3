"""The contract of a world: one object for each trajectory, text in, text out."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score

#: How a world forks, in the order in which the methods are tried.
ForkMethod = Literal["fork", "copy", "replay"]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of a world's tools, whose arguments fit its schema."""

    tool: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.tool} {dict(self.arguments)}"


@dataclass(frozen=True, slots=True)
class WholeTurn:
    """A whole turn of the model, for worlds that take turns.

    Attributes:
        text: what it says, without thoughts and call.
        call: what it calls, of whatever name.
        num_read, num_written: the numbers of tokens before the turn and in it.
        refused: why the chat template could not render the last reply; the model did not read it, and said nothing.
    """

    text: str
    call: Call | None = None
    num_read: int = 0
    num_written: int = 0
    refused: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.call or ''}{self.refused}".strip()


@dataclass(frozen=True, slots=True)
class Opening:
    """A whole prompt, for the chat template.

    Attributes:
        messages: {"role", "content"}, with "tool_calls" where calls are shown.
        functions: JSON schemas of what the model may call, as OpenAI has them.
    """

    messages: tuple[Mapping[str, Any], ...]
    functions: tuple[Mapping[str, Any], ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.messages + self.functions))


#: The `Reply.follows` of messages that begin another conversation.
BEGINS = -1


@dataclass(frozen=True, slots=True)
class Reply:
    """The world's answer to an action.

    Attributes:
        text: what the model reads next.
        reward: what the action earns.
        done: whether the world ends the trajectory here; the model does not read the text then.
        status: the outcome of a call.
        messages: if the world takes turns, the messages that the model reads next in place of the text; without them
            the text is a message of the user.
        functions: what the model may call then.
        follows: the turn, counted from 0, whose conversation the messages continue (the model then reads nothing of
            later turns); None: the last one; `BEGINS`: none, the messages are a whole prompt.
        raised: the class of the exception behind an error, and its bases, if the world's own code raised it.
    """

    text: str
    reward: float = 0.0
    done: bool = False
    status: ToolStatus = ToolStatus.OK
    messages: tuple[Mapping[str, Any], ...] = ()
    functions: tuple[Mapping[str, Any], ...] = ()
    follows: int | None = None
    raised: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        paid = f" (reward {self.reward:g})" if self.reward else ""
        text = self.text + " ".join(map(str, self.messages))
        after = {None: "", BEGINS: " (another conversation)"}.get(self.follows, f" (after turn {self.follows})")
        return "error: " * (self.status != ToolStatus.OK) + text + after + paid + " (the end)" * self.done


class WorldLost(BrokenToolError):
    """The world's process or connection is gone: another world takes over and repeats the same actions."""


class NotCopied(Exception):
    """`fork` should copy this world, and cannot: from then on the worlds of its kind are replayed."""


class World(ABC):
    """One trajectory acts in it: a game, a simulated user, a service with a state.

    Each trajectory has its own world; a question's worlds begin as forks of one world after its reset. Methods run in
    the event loop of all questions, so whatever waits must be awaited. Each world has its own state of `random` and
    `numpy.random`, and a fork inherits it.

    Attributes:
        tools: name -> JSON schema of a call's arguments, an object; its "description" is the tool's.
        takes_text: whether a turn without a call is also an action. Otherwise such a turn ends the trajectory.
        text_actions: the texts that are actions, if they can be listed; the scripted engine writes them.
        takes_turns: whether every turn that keeps the protocol is an action, a `WholeTurn`; `reset` then returns an
            `Opening`.
        stateless: whether an answer depends on its action alone; then another world need not repeat earlier actions.
        pays_by_replies: whether the rewards of its replies are all that it pays; `score` is then not called, and the
            accuracy is their sum, clipped to [0, 1].
        instruction: the system message for questions that have none; None: the protocol's.
        forks_by: how it forks; None: by the first method that works.
        fork_is_copy: whether `fork` uses `copy.deepcopy` in another process; the first forks are then checked.
        timeout_s: seconds for `reset` and for each action; a world that takes longer is broken.
        max_reply_tokens: longer replies are cut in the middle.
    """

    tools: Mapping[str, Mapping[str, Any]] = {}
    takes_text: bool = False
    text_actions: Sequence[str] = ()
    takes_turns: bool = False
    stateless: bool = False
    pays_by_replies: bool = False
    instruction: str | None = None
    forks_by: ClassVar[ForkMethod | None] = None
    fork_is_copy: ClassVar[bool] = False
    timeout_s: float = 60.0
    max_reply_tokens: int = 2048

    def exclusive_use(self) -> AbstractAsyncContextManager[Any]:
        """Whoever uses this world holds it. Waiting for it does not count towards `timeout_s`."""
        return contextlib.nullcontext()

    async def reset(self, question: Question) -> str | Opening:
        """Begins a question; the same question must always begin alike.

        Returns:
            The text that follows the question's own, at the end of the prompt.
        """
        return ""

    @abstractmethod
    async def act(self, action: Any) -> Reply:
        """Answers an action: a `Call`; with `takes_text` the text of a turn, with `takes_turns` a `WholeTurn`.

        Raises:
            ToolError: the action is at fault; the model reads the message, and goes on.
            BrokenToolError: the world cannot be used any more: the trajectory is masked. `WorldLost`: another one can.
        """

    async def score(self, path: FinishedPath) -> Score | None:
        """The reward and the accuracy of a finished path; rewards of replies are added. None: the configured reward.

        Args:
            path: `format_valid` says that no turn broke the protocol and that no limit of tokens cut it off.
        """
        return None

    async def fork(self) -> World:
        """An independent world in the same state. A world that does not override this is copied or replayed.

        This world does not act meanwhile.

        Raises:
            NotCopied: it can only be replayed.
        """
        raise NotImplementedError

    def take_refused(self) -> int:
        """The number of requests that all worlds of this one's maker have refused since the last call."""
        return 0

    async def close(self) -> None:
        """Gives back what the world holds; called once: when the question ends, `reset` fails or the world is lost."""
        return None
