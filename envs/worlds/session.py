"""A trajectory's session with a world: what was done there, which another world can repeat."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, DataError, ForkRefused, ToolError
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.tools.tool import Tool, place_of, read_argument
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.random_state import RandomState
from rllib_arpo.envs.worlds.running import ReplayMismatch, RunningWorld, told
from rllib_arpo.envs.worlds.world import Call, NotCopied, Opening, Reply, Turn, World, WorldLost


@dataclass(frozen=True, slots=True)
class Move:
    """An action and its reply; of a call as the model wrote it, its tool."""

    action: Call | str | Turn
    reply: Reply
    tool: Tool | None = None


class WorldSession:
    """One trajectory's session. Its world is made, forked or replayed when it is needed, or in the background before.

    A world that is lost is replaced by another one, where everything is repeated.

    Attributes:
        moves: what was done, in order.
        opening: what `reset` returned; None before.
        scored: the finished path, and the world's own score of it.
        copied_from: the session whose world was copied, and how many moves both share.
    """

    def __init__(self, maker: WorldMaker, question: Question):
        self.maker, self._question = maker, question
        self.moves: tuple[Move, ...] = ()
        self.opening: str | Opening | None = None
        self.scored: tuple[FinishedPath, Score | None] | None = None
        self.copied_from: tuple[WorldSession, int] | None = None
        self._running: RunningWorld | None = None
        self._making: asyncio.Task[None] | None = None
        #: The session whose world must still make this one's by `fork`, and those that wait for this world.
        self._parent: WorldSession | None = None
        self._owed: list[WorldSession] = []

    async def ready(self) -> World:
        """The world, made if there is none yet.

        Raises:
            ForkRefused: it is not what its parent's was.
            BrokenToolError: it cannot be made.
        """
        return (await self._ready()).world

    async def ready_as_fork(self) -> None:
        """Makes the world of a fork, unless its parent had none.

        Raises:
            ForkRefused: it cannot be made, also because of a bug: in the same actions of its parent there was none.
        """
        if self.opening is None:
            return
        try:
            await self._ready()
        except (DataError, ForkRefused):
            raise
        except Exception as error:
            raise ForkRefused(f"{type(error).__name__}: {first_line(error)}") from error

    async def act(self, action: Call | str | Turn, tool: Tool | None = None) -> Reply:
        """The world's answer to an action.

        Args:
            tool: in one of whose `max_concurrency` places the world acts.

        Raises:
            ToolError: the action cannot be answered, which the model reads.
            BrokenToolError: the world cannot be used any more.
        """
        await self._make_owed()
        try:
            reply = await _act_in(await self._recovered(), action, tool)
        except WorldLost:
            await self._dropped()
            # What they have done is gone with it.
            self.moves = tuple(move for move in self.moves if move.reply.status != ToolStatus.TIMEOUT)
            try:
                reply = await _act_in(await self._recovered(), action, tool)
            except WorldLost as error:
                await self._dropped()
                raise ToolError(f"{self.maker.name} was lost twice in one action ({error}).") from error
        self.moves += (Move(action, reply, tool),)
        return reply

    async def call(self, tool: Tool, argument: str | Mapping[str, object]) -> Reply:
        """The world's answer to a call as the model wrote it.

        Raises:
            BrokenToolError: the world cannot be used any more.
        """
        try:
            return await self.act(tool.as_call(read_argument(tool, argument)), tool)
        except ToolError as error:
            return Reply(str(error), status=ToolStatus.ERROR)

    async def say(self, said: str | Turn) -> Reply:
        """The world's answer to a turn or its text; errors as with `call`."""
        try:
            return await self.act(said)
        except ToolError as error:
            return Reply(str(error), status=ToolStatus.ERROR)

    @property
    def paid(self) -> float:
        """The sum of the replies' rewards."""
        return sum(move.reply.reward for move in self.moves)

    def paid_score(self) -> Score:
        """The score where the replies alone pay: nothing more, and the accuracy is what they have paid."""
        return Score(0.0, Score.of(self.paid).accuracy)

    @property
    def max_reply_tokens(self) -> int:
        return World.max_reply_tokens if self._running is None else self._running.world.max_reply_tokens

    async def score(self, path: FinishedPath) -> Score | None:
        """What the world itself says of a finished path; errors as with `RunningWorld.score`."""
        await self._make_owed()
        try:
            try:
                score = await self.score_in(await self._ready(), path)
            except WorldLost:
                await self._dropped()
                score = await self.score_in(await self._ready(), path)
        except ForkRefused as error:
            raise BrokenToolError(str(error)) from error
        self.scored = path, score
        return score

    async def score_in(self, running: RunningWorld, path: FinishedPath) -> Score | None:
        """What a world in which this session's moves were made says of a finished path; errors as with `score`."""
        return self.paid_score() if running.world.pays_by_replies else await running.score(path)

    def fork(self, *, begin: bool = True) -> WorldSession:
        """A session that goes on from here, by the way of the environment.

        Args:
            begin: whether to make its world in the background, if that takes time and an event loop is running.
        """
        child = WorldSession(self.maker, self._question)
        child.moves, child.opening = self.moves, self.opening
        source = self._parent if self._running is None and self._parent is not None else self
        running = source._running
        way = None if running is None else self.maker.way(running.world)
        if running is not None and way == "copy":
            child._running = self.maker.copied(running)
        elif way == "fork":
            child._parent = source
            source._owed.append(child)
        if child._running is not None or (running is not None and way == "fork" and running.world.fork_is_copy):
            child.copied_from = self, len(self.moves)
        if begin:
            child._begin()
        return child

    def fork_root(self) -> WorldSession:
        """A fork at the beginning, which gets this session's own world where a replay would make another."""
        child = self.fork(begin=False)
        if child._running is None and child._parent is None:
            child._running, self._running, self._making = self._running, None, None
        child._begin()
        return child

    async def close(self) -> None:
        """Ends what is being made, and closes the world."""
        if self._making is not None and not self._making.done():
            self._making.cancel()
            await asyncio.wait([self._making])
        if (running := self._taken()) is not None:
            await running.world.close()

    async def replayed(self) -> RunningWorld:
        """Another world in which everything was done again.

        Raises:
            ReplayMismatch: it does not answer as the first one did.
            BrokenToolError: it cannot be used.
        """
        name, random_state = self.maker.name, RandomState.of(self._question.question_id)
        running = RunningWorld(self.maker(), name, random_state)
        try:
            opening = await running.reset(self._question)
            if self.opening is None:
                self.opening = opening
            if opening != self.opening:
                raise ReplayMismatch(0, "the beginning", self.opening, opening)
            for turn, move in enumerate(() if running.world.stateless else self.moves, 1):
                # What an action has done that took too long, nobody knows.
                timed_out = move.reply.status == ToolStatus.TIMEOUT
                reply = None if timed_out else await _act_in(running, move.action, move.tool)
                if reply != move.reply:
                    raise ReplayMismatch(turn, f"turn {turn}, {told(move.action)},", move.reply, reply)
        except BaseException:
            await running.close_lost()
            raise
        return running

    async def _ready(self) -> RunningWorld:
        if self._running is None:
            # Plain RLlib runs a loop for each step, whose end cancels what is being made.
            if self._making is None or self._making.cancelled():
                self._making = asyncio.ensure_future(self._make())
            await asyncio.shield(self._making)
        assert self._running is not None
        return self._running

    async def _make(self) -> None:
        if self._parent is not None:
            parent = self._parent._running
            assert parent is not None
            try:
                self._running = await parent.fork()
                self.maker.with_common(self._running.world)
                return
            except NotCopied as error:
                self.maker.replay_instead(parent.world, str(error))
            except WorldLost:
                pass
            finally:
                # The parent goes on: what is forked from here later must not begin in its later state.
                self._parent = None
            self.copied_from = None
        try:
            self._running = await self.replayed()
        except ReplayMismatch as error:
            raise ForkRefused(f"{self.maker.name} cannot be repeated: {error}.") from error

    def _begin(self) -> None:
        """Makes the world of a fork in the background."""
        if self._running is not None or self.opening is None:
            return
        try:
            self._making = asyncio.get_running_loop().create_task(self._make())
        except RuntimeError:  # Without a loop it is made when it is needed.
            return
        self._making.add_done_callback(_read)

    async def _make_owed(self) -> None:
        """Lets this world make the forks that were taken of its present state. Their errors are theirs."""
        while self._owed:
            await asyncio.gather(self._owed[0].ready(), return_exceptions=True)
            self._owed.pop(0)

    async def _recovered(self) -> RunningWorld:
        """The world, or another one after a loss.

        Raises:
            ToolError: what was done cannot be repeated; the world starts anew.
            BrokenToolError: it cannot start anew either: it would pay again for what it has paid, or begin otherwise
                than the model has read.
        """
        try:
            return await self._ready()
        except ForkRefused as error:
            reason = str(error).rstrip(".")
            if any(move.reply.reward for move in self.moves):
                raise BrokenToolError(f"{reason}; it has paid rewards, and cannot start anew.") from error
            begins_otherwise = isinstance(error.__cause__, ReplayMismatch) and not error.__cause__.turn
            if self.maker.sample.takes_turns or begins_otherwise:
                raise BrokenToolError(f"{reason}; it cannot start anew.") from error
            self.moves, self.opening, self._making = (), None, None
            raise ToolError(f"{reason}; it starts anew.") from error

    async def _dropped(self) -> None:
        """Closes a world that is lost, as far as that can be done."""
        if (running := self._taken()) is not None:
            await running.close_lost()

    def _taken(self) -> RunningWorld | None:
        """The world, which the session has no more."""
        running, self._running, self._making, self._parent = self._running, None, None, None
        return running


async def _act_in(running: RunningWorld, action: Call | str | Turn, tool: Tool | None) -> Reply:
    async with contextlib.nullcontext() if tool is None else place_of(tool):
        return await running.act(action)


def _read(task: asyncio.Task[None]) -> None:
    """Marks a task's error as read: whoever needs the world gets it."""
    if not task.cancelled():
        task.exception()
