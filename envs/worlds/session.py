"""A trajectory's session with a world: it records what was done, and another world can repeat it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ContractError, DataError, ForkRefused, ToolError
from rllib_arpo.envs.forkable_env import settled
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.support.texts import first_line, seed_of_name
from rllib_arpo.envs.tools.tool import Tool, read_argument, slot_of
from rllib_arpo.envs.worlds.far_side import RandomNumbers
from rllib_arpo.envs.worlds.maker import ReplayMismatch, RunningWorld, WorldMaker
from rllib_arpo.envs.worlds.world import Call, NotCopied, Opening, Reply, WholeTurn, World, WorldLost

T = TypeVar("T")
#: How many copied forks an environment checks, and for how many seconds after a question (closing may take longer).
MAX_CHECKED, CHECK_TIMEOUT_S = 8, 10.0
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Move:
    """An action and its reply, and the tool if the model called one."""

    action: Call | str | WholeTurn
    reply: Reply
    tool: Tool | None = None


class WorldSession:
    """One trajectory's session. Its world is a copy or a fork of its parent's, or made by a replay.

    If the world is lost, another one takes its place, and everything is repeated there.

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
        #: The world, or the task that makes it or has failed to. None: a replay makes it when it is needed.
        self._world: RunningWorld | asyncio.Task[RunningWorld] | None = None
        #: The tasks that fork the world as it is now; the world does not act meanwhile.
        self._forking: list[asyncio.Task[RunningWorld]] = []

    async def ready(self) -> World:
        """The world, made if there is none yet.

        Raises:
            ForkRefused: its state differs from its parent's.
            BrokenToolError: it cannot be made.
        """
        return (await self._running()).world

    async def ready_as_fork(self) -> None:
        """Makes the world of a fork, unless its parent had none.

        Raises:
            ForkRefused: it cannot be made, for whatever reason: its parent's world took the same actions.
        """
        if self.opening is None:
            return
        try:
            await self._running()
        except (DataError, ForkRefused):
            raise
        except Exception as error:
            raise ForkRefused(f"{type(error).__name__}: {first_line(error)}") from error

    async def act(self, action: Call | str | WholeTurn, tool: Tool | None = None) -> Reply:
        """The world's answer to an action. An action that cannot be answered has an error as its reply.

        Args:
            tool: the world acts in one of its `max_concurrency` slots.

        Raises:
            BrokenToolError: the world cannot be used any more.
        """
        await self._forked()
        try:
            reply = await self._in_world_or_next(partial(_act_in, action=action, tool=tool))
        except WorldLost as error:
            return Reply(f"{self.maker.name} was lost twice in one action ({error}).", status=ToolStatus.ERROR)
        self.moves += (Move(action, reply, tool),)
        return reply

    async def call(self, tool: Tool, argument: str | Mapping[str, object]) -> Reply:
        """The world's answer to a call as the model wrote it; see `act`."""
        try:
            action = tool.as_call(read_argument(tool, argument))
        except ToolError as error:
            return Reply(str(error), status=ToolStatus.ERROR)
        return await self.act(action, tool)

    @property
    def paid(self) -> float:
        """The sum of the replies' rewards."""
        return sum(move.reply.reward for move in self.moves)

    def paid_score(self) -> Score:
        """The score if only replies pay: it adds no reward, and the accuracy is the sum that they have paid."""
        return Score(0.0, Score.of(self.paid).accuracy)

    async def score(self, path: FinishedPath) -> Score | None:
        """The world's own score of a finished path; raises the errors of `RunningWorld.score`."""
        await self._forked()
        score = await self._in_world_or_next(partial(self.score_in, path=path))
        self.scored = path, score
        return score

    async def score_in(self, running: RunningWorld, path: FinishedPath) -> Score | None:
        """The score of a path by a world in which this session's moves were made; raises the errors of `score`."""
        return self.paid_score() if running.world.pays_by_replies else await running.score(path)

    def fork(self, *, begin: bool = True) -> WorldSession:
        """A session that goes on from here.

        Args:
            begin: whether to begin a replay now, in the background, rather than when the world is needed.
        """
        child = WorldSession(self.maker, self._question)
        child.moves, child.opening = self.moves, self.opening
        if self.maker.fork_method == "copy" and isinstance(self._world, RunningWorld):
            child._world = self.maker.copied(self._world)
        elif self.maker.fork_method == "fork" and self._world is not None:
            child._begin(partial(child._forked_from, self._world))
            if isinstance(child._world, asyncio.Task):
                self._forking.append(child._world)
        if child._world is not None and self.maker.copies:
            child.copied_from = self, len(self.moves)
        if begin:
            child._begin_replay()
        return child

    def fork_root(self) -> WorldSession:
        """A fork at the beginning, which gets this session's own world if it would otherwise need a replay."""
        child = self.fork(begin=False)
        if child._world is None:
            child._world, self._world = self._world, None
        child._begin_replay()
        return child

    async def close(self) -> None:
        """Cancels what is still being made, and closes the world."""
        if (running := await self._taken()) is not None:
            await settled(running.world.close())

    async def replayed(self) -> RunningWorld:
        """Another world in which all moves were repeated.

        Raises:
            ReplayMismatch: it gives another answer than the first one.
            BrokenToolError: it cannot be used.
        """
        numbers = RandomNumbers(seed_of_name(self._question.question_id))
        running = RunningWorld(self.maker(), self.maker.name, numbers)
        try:
            opening = await running.reset(self._question)
            if self.opening is None:
                self.opening = opening
            if opening != self.opening:
                raise ReplayMismatch("the beginning", self.opening, opening)
            for turn, move in enumerate(() if running.world.stateless else self.moves, 1):
                # Nobody knows what an action that timed out has done.
                timed_out = move.reply.status == ToolStatus.TIMEOUT
                reply = None if timed_out else await _act_in(running, move.action, move.tool)
                if reply != move.reply:
                    raise ReplayMismatch(f"turn {turn}, {move.action},", move.reply, reply)
        except BaseException:
            await running.close_lost()
            raise
        return running

    async def _running(self) -> RunningWorld:
        """The world, made if there is none; raises the errors of `ready`."""
        # Plain RLlib runs an event loop for each step, and the loop's end cancels what is being made.
        if self._world is None or (isinstance(self._world, asyncio.Task) and self._world.cancelled()):
            self._begin(self._repeated)
        world = self._world
        assert world is not None
        return world if isinstance(world, RunningWorld) else await asyncio.shield(world)

    def _begin(self, make: Callable[[], Coroutine[Any, Any, RunningWorld]]) -> None:
        """Makes the world in the background; without an event loop a replay makes it when it is needed."""

        async def keep() -> RunningWorld:
            self._world = await make()
            return self._world

        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            self._world = loop.create_task(keep())
            # Whoever needs the world gets the task's error.
            self._world.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _begin_replay(self) -> None:
        if self._world is None and self.opening is not None:
            self._begin(self._repeated)

    async def _forked_from(self, parent: RunningWorld | asyncio.Task[RunningWorld]) -> RunningWorld:
        """A fork of the parent's world by its own `fork`; a replay if there can be none."""
        if isinstance(parent, asyncio.Task):
            await asyncio.wait([parent])
        source = _made(parent)
        try:
            if source is not None:
                running = await source.fork()
                self.maker.with_common(running.world)
                return running
        except NotCopied as error:
            self.maker.replay_instead(str(error))
        except WorldLost:
            pass
        self.copied_from = None
        return await self._repeated()

    async def _repeated(self) -> RunningWorld:
        try:
            return await self.replayed()
        except ReplayMismatch as error:
            raise ForkRefused(f"{self.maker.name} cannot be repeated: {error}.") from error

    async def _forked(self) -> None:
        """Waits for the forks of the present state, whose errors concern only the forks."""
        while self._forking:
            await asyncio.wait(self._forking)
            self._forking = [task for task in self._forking if not task.done()]

    async def _in_world_or_next(self, do: Callable[[RunningWorld], Coroutine[Any, Any, T]]) -> T:
        """What `do` returns in the world, or in another one if this one is lost; raises the errors of `_in_world`."""
        try:
            return await self._in_world(do)
        except WorldLost:
            # Calls that timed out are gone with the world.
            self.moves = tuple(move for move in self.moves if move.reply.status != ToolStatus.TIMEOUT)
            return await self._in_world(do)

    async def _in_world(self, do: Callable[[RunningWorld], Coroutine[Any, Any, T]]) -> T:
        """What `do` returns in the world.

        Raises:
            WorldLost: the world was lost; it has been closed, as far as possible.
            BrokenToolError: it cannot be used any more, or what was done before a loss cannot be repeated.
        """
        try:
            return await do(await self._running())
        except WorldLost:
            if (running := await self._taken()) is not None:
                await running.close_lost()
            raise
        except ForkRefused as error:
            raise BrokenToolError(str(error)) from error

    async def _taken(self) -> RunningWorld | None:
        """Takes the world from the session; None: there is none."""
        world, self._world = self._world, None
        if isinstance(world, asyncio.Task) and not world.done():
            world.cancel()
            await asyncio.wait([world])
        return _made(world)


def _made(world: RunningWorld | asyncio.Task[RunningWorld] | None) -> RunningWorld | None:
    """The world, unless the task that was to make it has failed."""
    if not isinstance(world, asyncio.Task):
        return world
    return None if world.cancelled() or world.exception() else world.result()


async def _act_in(running: RunningWorld, action: Call | str | WholeTurn, tool: Tool | None) -> Reply:
    async with contextlib.nullcontext() if tool is None else slot_of(tool):
        return await running.act(action)


class CopyChecks:
    """Replays the first copied forks and their parents, each twice, in new worlds."""

    def __init__(self) -> None:
        self._left = MAX_CHECKED
        self._warned = False

    async def check(self, sessions: Iterable[WorldSession]) -> None:
        """Checks the finished sessions of a question.

        Raises:
            ContractError: two replays agree and differ from the trajectory, so the copies share something.
        """
        if not self._left:
            return
        copied = [session for session in sessions if session.copied_from is not None and _repeats(session)]
        forks = [session for session in copied if session.copied_from is not None and session.copied_from[1]]
        chosen = (forks or copied)[: self._left]
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S) as limit:
                await self._compare(chosen)
        except TimeoutError:
            if not limit.expired():
                raise
            self._left = 0
            _logger.warning(
                "%s takes more than %g s to be repeated: it is not known whether its copies share something.",
                chosen[0].maker.name,
                CHECK_TIMEOUT_S,
            )

    async def _compare(self, chosen: Sequence[WorldSession]) -> None:
        self._left -= len(chosen)
        parents = [session.copied_from[0] for session in chosen if session.copied_from is not None]
        for session in dict.fromkeys([*chosen, *filter(_repeats, parents)]):
            first, second = await difference(session), await difference(session)
            if first is None and second is None:
                continue
            name = session.maker.name
            if first is not None and second is not None and str(first) == str(second):
                raise ContractError(
                    f"{name} was forked by copy.deepcopy, and the copies share something: repeated alone, {first},"
                    ' twice. Give it a method fork, or forks_by = "replay".'
                )
            if not self._warned:
                self._warned = True
                _logger.warning(
                    "%s differs when it is repeated (%s): it is not known whether its copies share something.",
                    name,
                    first or second,
                )


def _repeats(session: WorldSession) -> bool:
    """Whether there are moves and another world can repeat them: none timed out."""
    return bool(session.moves) and all(move.reply.status != ToolStatus.TIMEOUT for move in session.moves)


async def difference(session: WorldSession) -> ReplayMismatch | BrokenToolError | None:
    """What differs in a replay of all moves; None: nothing does."""
    try:
        running = await session.replayed()
    except (ReplayMismatch, BrokenToolError) as error:
        return error
    try:
        if session.scored is None:
            return None
        path, before = session.scored
        again = await session.score_in(running, path)
        return None if again == before else ReplayMismatch("the score", before, again)
    except BrokenToolError as error:
        return error
    finally:
        await running.close_lost()
