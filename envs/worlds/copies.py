"""Checks worlds that Python copies: a copy may share a session, a folder or a class attribute with the original."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ContractError
from rllib_arpo.envs.worlds.play import Differs, Play

#: Copied forks of a run that are checked.
MAX_CHECKED = 8
_logger = logging.getLogger(__name__)


class CopyChecks:
    """Replays the first copied forks and what they were copied from, twice each, in worlds of their own."""

    def __init__(self) -> None:
        self._left = MAX_CHECKED
        self._warned = False

    async def check(self, plays: Iterable[Play]) -> None:
        """Checks the finished plays of a question.

        Raises:
            ContractError: two replays agree, and the trajectory was another: the copies share something.
        """
        if not self._left:
            return
        copied = [play for play in plays if play.copied_from is not None and _repeats(play)]
        forks = [play for play in copied if play.copied_from is not None and play.copied_from[1]]
        chosen = (forks or copied)[: self._left]
        self._left -= len(chosen)
        parents = [play.copied_from[0] for play in chosen if play.copied_from is not None]
        for play in dict.fromkeys([*chosen, *filter(_repeats, parents)]):
            first, second = await difference(play), await difference(play)
            if first is None and second is None:
                continue
            name = play.forking.name
            if first is not None and second is not None and str(first) == str(second):
                raise ContractError(
                    f"{name} was forked by copy.deepcopy, and the copies share something: {first}, twice, when it was"
                    ' repeated alone. Give it a method fork, or forks_by = "replay".'
                )
            if not self._warned:
                self._warned = True
                _logger.warning(
                    "%s is not the same when it is repeated (%s): whether its copies share something cannot be told.",
                    name,
                    first or second,
                )


def _repeats(play: Play) -> bool:
    """Whether anything was done there that another world can repeat: not what took too long."""
    return bool(play.moves) and all(move.reply.status != ToolStatus.TIMEOUT for move in play.moves)


async def difference(play: Play) -> Differs | BrokenToolError | None:
    """What a replay of all moves does differently."""
    try:
        world, luck = await play.replayed()
    except (Differs, BrokenToolError) as error:
        return error
    try:
        if play.scored is None:
            return None
        path, before = play.scored
        again = await play.score_in(world, luck, path)
        return None if again == before else Differs(len(play.moves), "the score", str(before), str(again))
    except BrokenToolError as error:
        return error
    finally:
        await world.close()
