"""Finds the world that `env_config["world"]` names, and adapts objects that are not a `World`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

import gymnasium

from rllib_arpo.envs.support.validation import check_known, check_options, import_named, with_options
from rllib_arpo.envs.worlds import gym
from rllib_arpo.envs.worlds.classes import class_adapter
from rllib_arpo.envs.worlds.endpoint import EndpointWorld
from rllib_arpo.envs.worlds.interpreter import interpreter_world
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.openenv import openenv_world
from rllib_arpo.envs.worlds.program import ProgramWorld
from rllib_arpo.envs.worlds.verifiers import verifiers_world
from rllib_arpo.envs.worlds.world import ForkMethod, World

#: Option of every world, which replaces its attribute of the same name -> whether a value is allowed, and which are.
COMMON_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "forks_by": (lambda value: value in (None, *get_args(ForkMethod)), '"fork", "copy" or "replay"'),
    "instruction": (lambda value: value is None or isinstance(value, str), "a text"),
    "max_reply_tokens": (lambda value: type(value) is int and value >= 1, "an integer >= 1"),
    "timeout_s": (lambda value: type(value) in (int, float) and value > 0, "a number above 0"),
}
#: Name in `env_config["world"]` -> a function of the other options that returns the maker of worlds.
WORLDS: dict[str, Callable[..., Callable[[], World]]] = {
    "gymnasium": gym.gymnasium_world,
    "openenv": openenv_world,
    "verifiers": verifiers_world,
}


def find_world(given: Any) -> WorldMaker:
    """The maker of worlds of `env_config["world"]`.

    Args:
        given: a name in `WORLDS`, your own world, as the object or as "module:name", or a mapping of one of these to
            its options. The option "python" is the path of another Python, in which "module:name" runs.

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
        is_allowed, what = COMMON_OPTIONS[name]
        if not is_allowed(value):
            raise ValueError(f"env_config['world']: {name} must be {what}, not {value!r:.80}.")
    if "python" in own and named != "verifiers":
        python = own.pop("python")
        return WorldMaker(f"The world {str(named)!r}", interpreter_world(named, python, own), common)
    if isinstance(named, str) and ":" not in named:
        check_known([named], WORLDS, "world")
        name, adapt = named, WORLDS[named]
    else:
        found = import_named(named, "world") if isinstance(named, str) else named
        name, adapt = getattr(found, "__name__", type(found).__name__), _adapter_of(found)
    check_options(adapt, own, f"env_config['world']: {name}")
    return WorldMaker(f"The world {name!r}", adapt(**own), common)


def _adapter_of(found: Any) -> Callable[..., Callable[[], World]]:
    """A function of the options that returns the maker of worlds around an object."""
    if isinstance(found, type) and issubclass(found, World):
        return lambda **options: with_options(found, options, f"env_config['world']: {found.__name__}")
    if isinstance(found, type) and issubclass(found, gymnasium.Env):
        return partial(gym.class_world, found)
    if isinstance(found, type):
        return class_adapter(found)
    if inspect.iscoroutinefunction(found) and len(inspect.signature(found).parameters) >= 2:
        return partial(_program, found)
    raise ValueError(f"env_config['world']: {found!r:.80} is neither a World, a class nor a program of (chat, row).")


def _program(program: Callable[..., Any], /, **options: Any) -> Callable[[], World]:
    """A program of (chat, row) or (endpoint, row), whose further parameters are the options."""
    name = getattr(program, "__name__", "program")
    check_options(partial(program, None, None), options, f"env_config['world']: {name}")
    asks = next(iter(inspect.signature(program).parameters))
    made = partial(program, **options), name
    return partial(EndpointWorld, *made, []) if asks == "endpoint" else partial(ProgramWorld, *made)
