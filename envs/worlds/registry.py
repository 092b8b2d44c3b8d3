"""Finds the world that `env_config["world"]` names, and adapts what is not a `World` itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

from rllib_arpo.envs.support.validation import check_known, check_options, import_named
from rllib_arpo.envs.worlds import gym, skyrl_gym, textarena
from rllib_arpo.envs.worlds.classes import ClassAdapter
from rllib_arpo.envs.worlds.endpoint import EndpointWorld
from rllib_arpo.envs.worlds.games import is_class_of
from rllib_arpo.envs.worlds.interpreter import interpreter_world
from rllib_arpo.envs.worlds.nemo_gym import nemo_gym_world
from rllib_arpo.envs.worlds.openenv import openenv_world
from rllib_arpo.envs.worlds.program import ProgramWorld
from rllib_arpo.envs.worlds.verifiers import verifiers_world
from rllib_arpo.envs.worlds.world import Way, World

#: Options of every world, which replace its attributes of the same names -> whether a value will do, and what will.
COMMON_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "forks_by": (lambda value: value in (None, *get_args(Way)), '"fork", "copy" or "replay"'),
    "instruction": (lambda value: value is None or isinstance(value, str), "a text"),
    "max_reply_tokens": (lambda value: type(value) is int and value >= 1, "an integer >= 1"),
    "timeout_s": (lambda value: type(value) in (int, float) and value > 0, "a number above 0"),
}
#: Name in `env_config["world"]` -> from the other options to the maker of worlds.
WORLDS: dict[str, Callable[..., Callable[[], World]]] = {
    "gymnasium": gym.gymnasium_world,
    "nemo_gym": nemo_gym_world,
    "openenv": openenv_world,
    "textarena": textarena.textarena_world,
    "skyrl_gym": skyrl_gym.skyrl_gym_world,
    "verifiers": verifiers_world,
}
#: Package and class -> the same for classes that are derived from it, which come before the options.
GAMES: dict[tuple[str, str], Callable[..., Callable[[], World]]] = {
    ("gymnasium", "Env"): gym.class_world,
    ("textarena", "Env"): textarena.class_world,
    ("skyrl_gym", "Env"): skyrl_gym.class_world,
}


@dataclass(frozen=True, eq=False)
class WorldMaker:
    """Makes the worlds of an environment.

    Attributes:
        name: of the world, in messages.
        make: makes one.
        common: values for attributes of it.
    """

    name: str
    make: Callable[[], World]
    common: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def sample(self) -> World:
        """A world that is never reset: it says which tools there are, and what it takes."""
        return self()

    def __call__(self) -> World:
        world = self.make()
        for name, value in self.common.items():
            setattr(world, name, value)
        return world


def find_world(given: Any) -> WorldMaker:
    """The maker of worlds of `env_config["world"]`.

    Args:
        given: a name in `WORLDS`, the object of a world of your own, itself or as "module:name", or a mapping of one of
            these to its options. The option "python" is the path of another Python, where "module:name" runs.

    Raises:
        ValueError: there is no such world, or it does not take these options.
    """
    if isinstance(given, Mapping):
        if len(given) != 1 or not isinstance(next(iter(given.values())), Mapping):
            raise ValueError(f"env_config['world'] must name one world with an object of options, not {given!r:.80}.")
        ((named, options),) = given.items()
    else:
        named, options = given, {}
    common = {name: value for name, value in options.items() if name in COMMON_OPTIONS}
    own = {name: value for name, value in options.items() if name not in COMMON_OPTIONS}
    for name, value in common.items():
        will_do, what = COMMON_OPTIONS[name]
        if not will_do(value):
            raise ValueError(f"env_config['world']: {name} must be {what}, not {value!r:.80}.")
    if "python" in own and named != "verifiers":
        python = own.pop("python")
        return WorldMaker(str(named), interpreter_world(named, python, own), common)
    if isinstance(named, str) and ":" not in named:
        check_known([named], WORLDS, "world")
        name, adapt = named, WORLDS[named]
    else:
        found = import_named(named, "world") if isinstance(named, str) else named
        name, adapt = getattr(found, "__name__", type(found).__name__), _adapter_of(found)
    check_options(adapt, own, f"env_config['world']: {name}")
    return WorldMaker(name, adapt(**own), common)


def _adapter_of(found: Any) -> Callable[..., Callable[[], World]]:
    """From options to the maker of worlds around an object."""
    if isinstance(found, type) and issubclass(found, World):
        return _Made(found)
    for base, adapt in GAMES.items():
        if is_class_of(found, *base):
            return partial(adapt, found)
    if isinstance(found, type):
        return ClassAdapter(found)
    if inspect.iscoroutinefunction(found) and len(inspect.signature(found).parameters) >= 2:
        return _Program(found)
    raise ValueError(f"env_config['world']: {found!r:.80} is neither a World, a class nor a program of (chat, row).")


class _Made:
    """A class whose keyword arguments are the options."""

    def __init__(self, made: Callable[..., World]):
        self.made = made
        self.__signature__ = inspect.signature(made)

    def __call__(self, **options: Any) -> Callable[[], World]:
        return partial(self.made, **options)


class _Program:
    """A program of (chat, row) or (endpoint, row), whose further parameters are the options."""

    def __init__(self, program: Callable[..., Any]):
        self.program = program
        signature = inspect.signature(program)
        asks, _row, *further = signature.parameters.values()
        self.world = EndpointWorld if asks.name == "endpoint" else ProgramWorld
        self.__signature__ = signature.replace(parameters=further)

    def __call__(self, **options: Any) -> Callable[[], World]:
        name = getattr(self.program, "__name__", "program")
        return partial(self.world, partial(self.program, **options), name)
