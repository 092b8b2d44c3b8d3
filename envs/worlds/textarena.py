"""TextArena: its games for one player as worlds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rllib_arpo.envs.question import Question
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.envs.worlds.games import package_of_games, seed_of, with_options
from rllib_arpo.envs.worlds.world import Call, Reply, World


class TextArenaWorld(World):
    """One game, reset with the seed of the question's row. It pays at its end.

    The model reads the game's new messages: without its own action, and without those that it has read.

    Args:
        make: makes the game; its wrappers may change actions, those of observations have no effect.
    """

    takes_text = pays_by_replies = True

    def __init__(self, make: Callable[[], Any]):
        self._make = make
        self._game: Any = None

    async def reset(self, question: Question) -> str:
        self._game = self._make()
        # It seeds `random`, which is this world's own.
        self._game.reset(num_players=1, seed=seed_of(question))
        return self._news()

    async def act(self, action: Call | str) -> Reply:
        done, _info = self._game.step(str(action))
        if not done:
            return Reply(self._news())
        rewards, _info = self._game.close()
        return Reply(self._news(), float((rewards or {}).get(0, 0.0)), done=True)

    def _news(self) -> str:
        bare: Any = self._game
        while hasattr(bare, "is_wrapped_with"):
            bare = bare.env
        _player, messages = bare.get_observation()
        return "\n".join(text for _sender, text, kind in messages if kind.name != "PLAYER_ACTION")


def textarena_world(id: str, **options: Any) -> Callable[[], World]:
    """The maker of worlds of a registered game.

    Args:
        options: of `textarena.make`.

    Raises:
        ValueError: there is no such game, or no such package.
    """
    package_of_games("textarena")
    from textarena.envs.registration import ENV_REGISTRY, make

    check_known([id], ENV_REGISTRY, "game of textarena")
    return partial(TextArenaWorld, partial(make, id, **options))


def class_world(made: Callable[..., Any], **options: Any) -> Callable[[], World]:
    """The maker of worlds of a game's class; `options` are its keyword arguments."""
    return partial(TextArenaWorld, with_options(made, options))
