"""Makes the worlds of an environment, and the tools by which the model acts in them.

A running world has random numbers of its own and a time limit, and its replies are checked.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ContractError, DataError, RaisedToolError, ToolError, finite
from rllib_arpo.envs.forkable_env import settled
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.support.texts import first_line, valid_unicode
from rllib_arpo.envs.tools.schema_tool import SchemaTool
from rllib_arpo.envs.tools.tool import ToolResult
from rllib_arpo.envs.worlds.far_side import RandomNumbers
from rllib_arpo.envs.worlds.world import Call, ForkMethod, Opening, Reply, WholeTurn, World

T = TypeVar("T")

_logger = logging.getLogger(__name__)
#: Messages show only the differing part of longer replies.
_SHOWN_CHARS = 200


class Drawing(Generic[T]):
    """An awaitable that draws from these numbers whenever it runs, from one wait to the next."""

    def __init__(self, numbers: RandomNumbers, awaitable: Awaitable[T]):
        self._numbers, self._awaitable = numbers, awaitable

    def __await__(self) -> Generator[Any, Any, T]:
        stretches = self._awaitable.__await__()
        error: BaseException | None = None
        while True:
            with self._numbers.swapped_in():
                try:
                    waited = next(stretches) if error is None else stretches.throw(error)
                except StopIteration as end:
                    return end.value
            error = None
            try:
                yield waited
            except BaseException as raised:
                error = raised


class RunningWorld:
    """A world and its random numbers.

    Attributes:
        world: the world itself.
        name: the name of its kind, for messages.
    """

    def __init__(self, world: World, name: str, numbers: RandomNumbers):
        self.world, self.name, self._numbers = world, name, numbers

    async def reset(self, question: Question) -> str | Opening:
        """Resets the world, and returns its opening.

        Raises:
            BrokenToolError: it cannot begin, or takes too long.
        """
        opening = await self._limited(lambda: Drawing(self._numbers, self.world.reset(question)))
        if not isinstance(opening, str | Opening):
            raise ContractError(f"{self.name}: reset must return a text, not {opening!r:.80}.")
        return valid_unicode(opening) if isinstance(opening, str) else opening

    async def act(self, action: Call | str | WholeTurn) -> Reply:
        """The answer to an action; a `ToolError` becomes an answer.

        Raises:
            BrokenToolError: the world cannot be used any more; `WorldLost`: another one can.
        """
        try:
            # What the world does with the arguments must not change what a replay gives it.
            reply = await self._limited(lambda: Drawing(self._numbers, self.world.act(copy.deepcopy(action))))
        except ToolError as error:
            kinds = error.kinds if isinstance(error, RaisedToolError) else ()
            reply = Reply(str(error), status=ToolStatus.ERROR, raised=kinds)
        if not (isinstance(reply, Reply) and isinstance(reply.text, str)):
            raise ContractError(f"{self.name} must return a Reply with a text, not {reply!r:.80}.")
        reward = finite(reply.reward, f"{self.name}: the reward of {str(action)!r:.80}")
        return dataclasses.replace(reply, text=valid_unicode(reply.text), reward=reward)

    async def score(self, path: FinishedPath) -> Score | None:
        """The world's score of a finished path.

        Raises:
            BrokenToolError: it cannot score.
            ContractError: it raises another error, or returns no `Score`.
        """
        try:
            score: Any = await self._limited(lambda: Drawing(self._numbers, self.world.score(path)))
        except (BrokenToolError, DataError):
            raise
        except Exception as error:
            # If it were masked, the model could avoid training by paths that the world cannot read.
            raise ContractError(f"{self.name}: score raises {type(error).__name__}: {first_line(error)}.") from error
        if score is None:
            return None
        if not isinstance(score, Score):
            raise ContractError(f"{self.name}: score must return a Score or None, not {score!r:.80}.")
        return Score(*(finite(one, f"{self.name}: the score") for one in (score.reward, score.accuracy)))

    async def fork(self) -> RunningWorld:
        """An independent world, made by this one's own `fork`."""
        made: object = await self._limited(self.world.fork)
        if not isinstance(made, World):
            raise ContractError(f"{self.name}: fork must return a World, not {made!r:.80}.")
        return RunningWorld(made, self.name, copy.copy(self._numbers))

    def copy(self) -> RunningWorld:
        """An independent world, made by `copy.deepcopy`, which may raise anything."""
        return RunningWorld(copy.deepcopy(self.world), self.name, copy.copy(self._numbers))

    async def close_lost(self) -> None:
        """Closes a world that another one, or an error, replaces; an error of `close` is only logged."""
        try:
            async with asyncio.timeout(self.world.timeout_s):
                await settled(self.world.close())
        except Exception as error:
            _logger.warning("%s did not close: %s: %s", self.name, type(error).__name__, first_line(error))

    async def _limited(self, make: Callable[[], Awaitable[T]]) -> T:
        try:
            async with self.world.exclusive_use(), asyncio.timeout(self.world.timeout_s) as limit:
                return await settled(make())
        except TimeoutError as error:
            if not limit.expired():  # The world's own.
                raise
            name = type(self.world).__name__
            raise BrokenToolError(f"{name} did not answer in {self.world.timeout_s:g} s.") from error


class ReplayMismatch(Exception):
    """A replayed world does not do the same again."""

    def __init__(self, what: str, before: Any, again: Any):
        old, new = ("no answer" if reply is None else str(reply) for reply in (before, again))
        if old == new:
            old, new = repr(before), repr(again)
        shorter = min(len(old), len(new))
        same = next((i for i in range(shorter) if old[i] != new[i]), shorter)
        start = max(0, same - _SHOWN_CHARS // 2) if max(len(old), len(new)) > _SHOWN_CHARS else 0
        part = slice(start, start + _SHOWN_CHARS)
        super().__init__(f"{what} got {new[part]!r} in place of {old[part]!r}")


class WorldMaker:
    """Makes the worlds of one kind. All of them fork by the first method that works.

    Attributes:
        name: the beginning of messages: "The world 'safe'".
        make: makes one.
    """

    def __init__(self, name: str, make: Callable[[], World], common: Mapping[str, Any] | None = None):
        """Makes no world yet. `common`: attribute -> the value that it gets in all worlds."""
        self.name, self.make, self._common = name, make, common or {}
        self._method: ForkMethod | None = None

    @functools.cached_property
    def sample(self) -> World:
        """A world that is never reset: it says which tools there are, and what it takes."""
        return self()

    def __call__(self) -> World:
        return self.with_common(self.make())

    def with_common(self, world: World) -> World:
        for name, value in self._common.items():
            setattr(world, name, value)
        return world

    @property
    def fork_method(self) -> ForkMethod:
        """The method by which all worlds fork: the one asked for, or the first that works."""
        if self._method is None:
            world = self.sample
            forks = type(world).fork is not World.fork
            if world.forks_by not in (None, "copy", "replay", *(["fork"] if forks else [])):
                raise ContractError(f"{self.name} cannot fork by {world.forks_by!r}.")
            asked = "fork" if world.fork_is_copy and world.forks_by == "copy" else world.forks_by
            self._method = asked or ("fork" if forks else "copy")
        return self._method

    @property
    def copies(self) -> bool:
        """Whether worlds fork by `copy.deepcopy`, here or elsewhere."""
        return self.fork_method == "copy" or (self.fork_method == "fork" and self.sample.fork_is_copy)

    def copied(self, running: RunningWorld) -> RunningWorld | None:
        """A copy; None if Python cannot copy it. Raises the errors of `replay_instead`."""
        try:
            return running.copy()
        except Exception as error:
            self.replay_instead(f"{type(error).__name__}: {first_line(error)}")
            return None

    def replay_instead(self, raised: str) -> None:
        """Replays from now on, since `copy.deepcopy` raised this.

        Raises:
            ContractError: `forks_by` demands copies.
        """
        if self.sample.forks_by == "copy":
            raise ContractError(f'{self.name} has forks_by = "copy", and copy.deepcopy raises {raised}.')
        if self._method != "replay":
            _logger.warning("%s cannot be copied (%s): its forks are replayed.", self.name, raised)
        self._method = "replay"

    def tools(self) -> list[WorldTool]:
        """A tool for each call that the worlds take."""
        return [
            WorldTool(
                name=name,
                name_in_world=name,
                description=schema.get("description", ""),
                input_schema={key: value for key, value in schema.items() if key != "description"},
                make_world=self,
                timeout_s=self.sample.timeout_s,
                max_result_tokens=self.sample.max_reply_tokens,
            )
            for name, schema in self.sample.tools.items()
        ]


@dataclass(frozen=True, kw_only=True)
class WorldTool(SchemaTool):
    """One of the calls that a world takes.

    Attributes:
        name_in_world: the name by which the world knows it.
    """

    name_in_world: str
    make_world: WorldMaker = field(repr=False)  # type: ignore[misc]

    def as_call(self, argument: Mapping[str, Any]) -> Call:
        return Call(self.name_in_world, argument)

    async def __call__(self, argument: Mapping[str, Any]) -> ToolResult:
        raise TypeError(f"{self.name} acts in a world.")
