"""A world as one trajectory plays it: what was done there, which another world can repeat."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ContractError, DataError, ForkRefused, ToolError, finite
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.support.texts import first_line, valid_unicode
from rllib_arpo.envs.tools.tool import Tool, place_of, read_argument
from rllib_arpo.envs.worlds.luck import Luck
from rllib_arpo.envs.worlds.world import Call, Opening, Reply, Turn, Way, World, WorldLost

T = TypeVar("T")

#: Of longer replies messages show the part that differs.
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Move:
    """An action and its reply."""

    action: Call | str | Turn
    reply: Reply


class Differs(Exception):
    """A world does not do what another one did.

    Attributes:
        turn: the number of the action, from 1; 0: the beginning.
    """

    def __init__(self, turn: int, what: str, before: str, again: str):
        same = next((i for i, (one, other) in enumerate(zip(before, again, strict=False)) if one != other), 0)
        start = max(0, same - _SHOWN_CHARS // 2) if max(len(before), len(again)) > _SHOWN_CHARS else 0
        shown = slice(start, start + _SHOWN_CHARS)
        super().__init__(f"{what} got {again[shown]!r} in place of {before[shown]!r}")
        self.turn = turn


class Forking:
    """How the worlds of one environment fork: the first way that works, decided once for all its questions.

    Attributes:
        make: makes a world.
        name: of the world, in messages.
    """

    def __init__(self, make: Callable[[], World], name: str):
        self.make, self.name = make, name
        self._way: Way | None = None

    def way(self, world: World) -> Way:
        """The way of the first world that forks; all are of one kind."""
        if self._way is None:
            forks = type(world).fork is not World.fork
            if world.forks_by not in (None, "copy", "replay", *(["fork"] if forks else [])):
                raise ContractError(f"{self.name} cannot fork by {world.forks_by!r}.")
            self._way = world.forks_by or ("fork" if forks else "copy")
        return self._way

    def copied(self, world: World) -> World | None:
        """A copy; None, from now on, if Python cannot copy it."""
        try:
            return copy.deepcopy(world)
        except Exception:
            self._way = "replay"
            return None


class Play:
    """One trajectory's world. It is made, forked or replayed when it is needed, or in the background before.

    A world that is lost is replaced by another one, where everything is repeated.

    Attributes:
        moves: what was done, in order.
        opening: what `reset` returned; None before.
        scored: the finished path, and the world's own score of it.
        copied_from: the play whose world was copied, and how many moves both share.
    """

    def __init__(self, forking: Forking, question: Question):
        self.forking, self._question = forking, question
        self.moves: tuple[Move, ...] = ()
        self.opening: str | Opening | None = None
        self.scored: tuple[FinishedPath, Score | None] | None = None
        self.copied_from: tuple[Play, int] | None = None
        self._world: World | None = None
        self._luck = Luck.of(question.question_id)
        self._making: asyncio.Task[None] | None = None
        #: The play whose world must still make this one's by `fork`, and those that wait for this world.
        self._parent: Play | None = None
        self._owed: list[Play] = []

    async def ready(self) -> World:
        """The world, made if there is none yet.

        Raises:
            ForkRefused: it is not what its parent's was.
            BrokenToolError: it cannot be made.
        """
        if self._world is None:
            if self._making is None:
                self._making = asyncio.ensure_future(self._make())
            await asyncio.shield(self._making)
        assert self._world is not None
        return self._world

    async def act(self, action: Call | str | Turn) -> Reply:
        """The world's answer to an action.

        Raises:
            ToolError: the action cannot be answered, which the model reads.
            BrokenToolError: the world cannot be used any more.
        """
        await self._make_owed()
        try:
            reply = await self._answer(await self._recovered(), self._luck, action)
        except WorldLost:
            await self._dropped()
            # What they have done is gone with it.
            self.moves = tuple(move for move in self.moves if move.reply.status != ToolStatus.TIMEOUT)
            try:
                reply = await self._answer(await self._recovered(), self._luck, action)
            except WorldLost as error:
                await self._dropped()
                raise ToolError(f"{self.forking.name} was lost twice in one action ({error}).") from error
        self.moves += (Move(action, reply),)
        return reply

    async def call(self, tool: Tool, argument: str | Mapping[str, Any]) -> Reply:
        """The world's answer to a call as the model wrote it.

        Raises:
            BrokenToolError: the world cannot be used any more.
        """
        try:
            read = read_argument(tool, argument)
            async with place_of(tool):
                return await self.act(tool.as_call(read))
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

    @property
    def refused(self) -> int:
        """The requests of the world's agent that continued no conversation."""
        return 0 if self._world is None else self._world.refused

    def paid_score(self) -> Score:
        """The score where the replies alone pay: nothing more, and the accuracy is what they have paid."""
        return Score(0.0, min(max(self.paid, 0.0), 1.0))

    @property
    def max_reply_tokens(self) -> int:
        return World.max_reply_tokens if self._world is None else self._world.max_reply_tokens

    async def score(self, path: FinishedPath) -> Score | None:
        """What the world itself says of a finished path.

        Raises:
            BrokenToolError: it cannot say.
            ContractError: it raises another error, or returns no `Score`.
        """
        await self._make_owed()
        try:
            world = await self.ready()
        except ForkRefused as error:
            raise BrokenToolError(str(error)) from error
        score = await self.score_in(world, self._luck, path)
        self.scored = path, score
        return score

    async def score_in(self, world: World, luck: Luck, path: FinishedPath) -> Score | None:
        """What a world says of a finished path; errors as with `score`."""
        if world.pays_by_replies:
            return self.paid_score()
        try:
            return self._checked(await self._limited(world, luck.run(world.score(path))))
        except (BrokenToolError, DataError):
            raise
        except Exception as error:
            # Masking it would let the model leave the training by a path that the world cannot read.
            raise ContractError(
                f"{self.forking.name}: score raises {type(error).__name__}: {first_line(error)}."
            ) from error

    def _checked(self, score: Any) -> Score | None:
        if score is None:
            return None
        if not isinstance(score, Score):
            raise ContractError(f"{self.forking.name}: score must return a Score or None, not {score!r:.80}.")
        reward, accuracy = (finite(one, f"{self.forking.name}: the score") for one in (score.reward, score.accuracy))
        return Score(reward, accuracy)

    def fork(self, *, begin: bool = True) -> Play:
        """A play that goes on from here, by the way of the environment.

        Args:
            begin: whether to make its world in the background, if that takes time and an event loop is running.
        """
        child = Play(self.forking, self._question)
        child.moves, child.opening = self.moves, self.opening
        source = self._parent if self._world is None and self._parent is not None else self
        world = source._world
        if world is not None and self.forking.way(world) == "copy":
            child._world = self.forking.copied(world)
            child.copied_from = None if child._world is None else (self, len(self.moves))
        if world is not None and self.forking.way(world) != "replay":
            child._luck = source._luck.copy()
        if world is not None and self.forking.way(world) == "fork":
            child._parent = source
            source._owed.append(child)
            if world.fork_is_copy:
                child.copied_from = self, len(self.moves)
        if begin and child._world is None and self.opening is not None:
            child._begin()
        return child

    def handed_over(self) -> Play:
        """A fork at the beginning, which gets this play's own world where a replay would make another."""
        child = self.fork(begin=False)
        if child._world is None and child._parent is None:
            child._world, self._world, child._luck = self._world, None, self._luck
        if child._world is None and self.opening is not None:
            child._begin()
        return child

    async def close(self) -> None:
        """Ends what is being made, and closes the world."""
        if self._making is not None and not self._making.done():
            self._making.cancel()
            await asyncio.wait([self._making])
        await self._drop()

    def _begin(self) -> None:
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

    async def _make(self) -> None:
        if self._parent is not None:
            world = self._parent._world
            assert world is not None
            try:
                made: object = await self._limited(world, world.fork())
            finally:
                # The parent goes on: what is forked from here later must not begin in its later state.
                self._parent = None
            if not isinstance(made, World):
                raise ContractError(f"{self.forking.name}: fork must return a World, not {made!r:.80}.")
            self._world = made
            return
        try:
            self._world, self._luck = await self.replayed()
        except Differs as error:
            raise ForkRefused(f"{self.forking.name} cannot be repeated: {error}.") from error

    async def replayed(self) -> tuple[World, Luck]:
        """Another world in which everything was done again, and its luck.

        Raises:
            Differs: it does not answer as the first one did.
            BrokenToolError: it cannot be used.
        """
        world, luck = self.forking.make(), Luck.of(self._question.question_id)
        try:
            opening = await self._limited(world, luck.run(world.reset(self._question)))
            if not isinstance(opening, str | Opening):
                raise ContractError(f"{self.forking.name}: reset must return a text, not {opening!r:.80}.")
            opening = valid_unicode(opening) if isinstance(opening, str) else opening
            if self.opening is None:
                self.opening = opening
            if opening != self.opening:
                raise Differs(0, "the beginning", _told(self.opening), _told(opening))
            for turn, move in enumerate(self.moves, 1):
                # What an action has done that took too long, nobody knows.
                timed_out = move.reply.status == ToolStatus.TIMEOUT
                reply = None if timed_out else await self._answer(world, luck, move.action)
                if reply != move.reply:
                    raise Differs(turn, f"turn {turn}, {_told(move.action)},", _told(move.reply), _told(reply))
        except BaseException:
            with contextlib.suppress(BrokenToolError):
                await world.close()
            raise
        return world, luck

    async def _recovered(self) -> World:
        """The world, or another one after a loss.

        Raises:
            ToolError: what was done cannot be repeated; the world starts anew.
        """
        try:
            return await self.ready()
        except ForkRefused as error:
            self.moves, self.opening, self._making = (), None, None
            raise ToolError(f"{str(error).rstrip('.')}; it starts anew.") from error

    async def _answer(self, world: World, luck: Luck, action: Call | str | Turn) -> Reply:
        try:
            # What the world does with the arguments must not change what a replay gives it.
            reply = await self._limited(world, luck.run(world.act(copy.deepcopy(action))))
        except ToolError as error:
            reply = Reply(str(error), status=ToolStatus.ERROR)
        if not (isinstance(reply, Reply) and isinstance(reply.text, str)):
            raise ContractError(f"{self.forking.name} must return a Reply with a text, not {reply!r:.80}.")
        reward = finite(reply.reward, f"{self.forking.name}: the reward of {_told(action)!r:.80}")
        return dataclasses.replace(reply, text=valid_unicode(reply.text), reward=reward)

    async def _limited(self, world: World, awaitable: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(world.timeout_s) as limit:
                return await awaitable
        except TimeoutError as error:
            if not limit.expired():  # The world's own.
                raise
            raise BrokenToolError(f"{type(world).__name__} did not answer in {world.timeout_s:g} s.") from error

    async def _dropped(self) -> None:
        """Closes a world that is lost, as far as that can be done."""
        with contextlib.suppress(BrokenToolError):
            await self._drop()

    async def _drop(self) -> None:
        world, self._world, self._making, self._parent = self._world, None, None, None
        if world is not None:
            await world.close()


def _read(task: asyncio.Task[None]) -> None:
    """Marks a task's error as read: whoever needs the world gets it."""
    if not task.cancelled():
        task.exception()


def _told(said: Any) -> str:
    """An action or a reply in a message."""
    if said is None:
        return "no answer"
    if isinstance(said, Call):
        return f"{said.tool} {dict(said.arguments)}"
    if isinstance(said, Opening):
        return " ".join(map(str, said.messages + said.functions))
    if isinstance(said, Reply):
        paid = f" (reward {said.reward:g})" if said.reward else ""
        text = said.text + " ".join(map(str, said.messages))
        return "error: " * (said.status != ToolStatus.OK) + text + paid + " (the end)" * said.done
    return str(said)
