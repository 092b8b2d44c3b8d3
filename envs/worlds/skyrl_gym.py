"""SkyRL Gym: its text environments as worlds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rllib_arpo.envs.errors import ContractError
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.envs.worlds.games import package_of_games
from rllib_arpo.envs.worlds.world import Call, Reply, World


class SkyRLWorld(World):
    """One `BaseTextEnv`, made of the question's row (its `extras`) and begun with the question's messages.

    Args:
        make: from `extras` to the environment.
    """

    takes_text = pays_by_replies = True

    def __init__(self, make: Callable[..., Any]):
        self._make = make
        self._env: Any = None

    async def reset(self, question: Question) -> str:
        self._env = self._make(extras=copy.deepcopy(dict(question.row)))
        asked = [{"role": role, "content": text} for role, text in question.messages]
        begun, _metadata = self._env.init(copy.deepcopy(asked))
        if list(begun[: len(asked)]) != asked:
            raise ContractError(f"{question.source}: init of {self._env} must keep the prompt, and may add to it.")
        return _text(begun[len(asked) :])

    async def act(self, action: Call | str) -> Reply:
        step = self._env.step(str(action))
        return Reply(_text(step["observations"]), float(step["reward"]), bool(step["done"]))

    async def close(self) -> None:
        if self._env is not None:
            self._env.close()


def _text(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n\n".join(message["content"] for message in messages)


def skyrl_gym_world(id: str, *, env_config: Mapping[str, Any] | None = None) -> Callable[[], World]:
    """The maker of worlds of a registered environment.

    Args:
        env_config: the environment's own, whose keys are its attributes.

    Raises:
        ValueError: there is no such environment, or no such package.
    """
    package = package_of_games("skyrl_gym")
    check_known([id], package.registry, "environment of skyrl_gym")
    return partial(SkyRLWorld, partial(package.make, id, env_config=_attributes(env_config)))


def class_world(made: Callable[..., Any], *, env_config: Mapping[str, Any] | None = None) -> Callable[[], World]:
    """The maker of worlds of a class of environments."""
    return partial(SkyRLWorld, partial(made, env_config=_attributes(env_config)))


def _attributes(config: Mapping[str, Any] | None) -> Any:
    if config is None:
        return None
    from omegaconf import OmegaConf

    return OmegaConf.create(dict(config))
