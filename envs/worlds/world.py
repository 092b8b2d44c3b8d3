"""The contract of a world: one object a trajectory, text in, text out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        num_read, num_written: tokens before the turn, and of it.
        refused: why the chat template could not render the last reply, which the model did not read: it said nothing.
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


#: `Reply.follows` of messages that begin another conversation.
BEGINS = -1


@dataclass(frozen=True, slots=True)
class Reply:
    """The world's answer to an action.

    Attributes:
        text: what the model reads next.
        reward: what the action earns.
        done: whether the world ends the trajectory here; the model does not read the text then.
        status: the outcome of a call.
        messages: where the world takes turns, what the model reads next in place of the text, for the chat template;
            without them the text is a message of the user.
        functions: what it may call then.
        follows: the turn, from 0, whose conversation the messages continue; None: this one; `BEGINS`: none, they are a
            whole prompt. Of the turns between, the model reads nothing then.
    """

    text: str
    reward: float = 0.0
    done: bool = False
    status: ToolStatus = ToolStatus.OK
    messages: tuple[Mapping[str, Any], ...] = ()
    functions: tuple[Mapping[str, Any], ...] = ()
    follows: int | None = None

    def __str__(self) -> str:
        paid = f" (reward {self.reward:g})" if self.reward else ""
        text = self.text + " ".join(map(str, self.messages))
        after = {None: "", BEGINS: " (another conversation)"}.get(self.follows, f" (after turn {self.follows})")
        return "error: " * (self.status != ToolStatus.OK) + text + after + paid + " (the end)" * self.done


class WorldLost(BrokenToolError):
    """The world's process or connection is gone: another world takes over, where the same actions are repeated."""


class NotCopied(Exception):
    """`fork` copies, and this world cannot be copied: from then on the worlds of its kind are replayed."""


class World(ABC):
    """What one trajectory acts in: a game, a simulated user, a service with a state.

    Each trajectory has a world of its own; those of one question begin as forks of one world after its reset. Methods
    run in the event loop of all questions, so whatever waits must be awaited. `random` and `numpy.random` have a state
    of their own in each world, which a fork takes over.

    Attributes:
        tools: name -> JSON schema of a call's arguments, an object; its "description" is the tool's.
        takes_text: whether a turn without a call is an action too. Otherwise such a turn ends the trajectory.
        text_actions: the texts that are actions, if they can be listed; the scripted engine writes them.
        takes_turns: whether every turn that keeps the protocol is an action, a `WholeTurn`; `reset` then returns an
            `Opening`.
        stateless: whether an answer depends on its action alone, so that another world need not repeat those before.
        pays_by_replies: whether the rewards of its replies are all that it pays, and their sum, between 0 and 1, is the
            accuracy; `score` is not asked then.
        instruction: the system message for questions that have none; None: the protocol's.
        forks_by: how it forks; None: by the first method that works.
        fork_is_copy: whether `fork` copies by `copy.deepcopy`, elsewhere, so that its first forks are checked.
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

    async def reset(self, question: Question) -> str | Opening:
        """Begins; the same question must begin alike.

        Returns:
            The text that ends the prompt, after the question's own.
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
        """The number of requests that all worlds of this one's maker have not answered since the last call."""
        return 0

    async def close(self) -> None:
        """Gives back what the world holds; called once, when the question has ended, `reset` failed or it was lost."""
        return None
