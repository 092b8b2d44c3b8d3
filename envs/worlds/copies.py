"""Checks worlds that Python copies: a copy may share a session, a folder or a class attribute with the original."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ContractError
from rllib_arpo.envs.worlds.running import ReplayMismatch
from rllib_arpo.envs.worlds.session import WorldSession

#: How many copied forks an environment checks, and for how many seconds after a question (closing may take longer).
MAX_CHECKED, TIMEOUT_S = 8, 10.0
_logger = logging.getLogger(__name__)


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
            async with asyncio.timeout(TIMEOUT_S) as limit:
                await self._compare(chosen)
        except TimeoutError:
            if not limit.expired():
                raise
            self._left = 0
            _logger.warning(
                "%s takes more than %g s to be repeated: it is not known whether its copies share something.",
                chosen[0].maker.name,
                TIMEOUT_S,
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
