"""Gymnasium environments as worlds: observations become texts, and texts become actions."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym

from rllib_arpo.envs.errors import ContractError, ToolError, as_tool_error
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.support.texts import first_line, seed_of_name
from rllib_arpo.envs.support.validation import function_named, with_options
from rllib_arpo.envs.worlds.world import Call, Reply, World

#: The text of a turn -> an action. The model reads what it raises.
Read = Callable[[str], Any]
#: The environment, or its last observation -> what the model reads.
Show = Callable[[Any], str]


class GymWorld(World):
    """One environment. It is reset with the seed in the question's row (if there is none, with a seed made from the
    question's name); the row's other columns are the reset's options.

    If a text is not an action, the model reads an error. The environment does not notice, but the text counts towards
    `max_tool_calls`.

    Args:
        make: makes the environment.
        read: makes an action of a text; None: actions are texts.
        show: gets the environment if its first parameter is named `env`, otherwise the observation; None: observations
            are texts.
    """

    takes_text = pays_by_replies = True

    def __init__(self, make: Callable[[], gym.Env], read: Read | None = None, show: Show | None = None):
        self._make, self._read, self._show = make, read, show
        self._env: gym.Env | None = None
        self._first_action = 0
        if isinstance(read, ActionNames):
            self.text_actions = read.names

    async def reset(self, question: Question) -> str:
        self._env = env = self._make()
        for key, given, space in (("read", self._read, env.action_space), ("show", self._show, env.observation_space)):
            if given is None and not isinstance(space, gym.spaces.Text):
                raise ContractError(f"env_config['world'] needs {key!r}, since the environment has {space}, not Text.")
        if isinstance(self._read, ActionNames):
            self._first_action = self._read.first_number(env.action_space)
        # The environment may change them, and the row is asked again.
        options = copy.deepcopy({name: value for name, value in question.row.items() if name != "seed"})
        seed = question.row.get("seed")
        seed = seed_of_name(question.question_id) if seed is None else int(seed)
        observation, _info = env.reset(seed=seed, options=options or None)
        return self._shown(observation)

    async def act(self, action: Call | str) -> Reply:
        assert self._env is not None
        chosen = action
        if self._read is not None:
            with as_tool_error():
                chosen = self._read(str(action))
            if isinstance(self._read, ActionNames):
                chosen += self._first_action
        try:
            known = self._env.action_space.contains(chosen)
        except OverflowError:  # A number too large for numpy.
            known = False
        if not known:
            raise ToolError(f"{action!r} is not an action: {self._env.action_space}.")
        observation, reward, terminated, truncated, _info = self._env.step(chosen)
        return Reply(self._shown(observation), float(reward), bool(terminated or truncated))

    async def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _shown(self, observation: Any) -> str:
        if self._show is None:
            return str(observation)
        assert self._env is not None
        return self._show(self._env.unwrapped if _takes_env(self._show) else observation)


def gymnasium_world(id: str, **options: Any) -> Callable[[], World]:
    """The maker of worlds of the environment that Gymnasium knows by this id; for the options see `class_world`.

    Raises:
        ValueError: there is no such environment.
    """
    try:
        gym.spec(id)
    except gym.error.Error as error:
        raise ValueError(f"env_config['world']: gymnasium: {first_line(error)}") from error
    return class_world(partial(gym.make, id), **options)


def class_world(
    made: Callable[..., gym.Env],
    *,
    read: Read | str | Sequence[str] | None = None,
    show: Show | str | None = None,
    **options: Any,
) -> Callable[[], World]:
    """The maker of worlds of a class of environments; `options` are its keyword arguments.

    Args:
        read, show: functions, or their names "module:function"; `read` may be a list of the actions' names instead.

    Raises:
        ValueError: the class does not take them.
    """
    if isinstance(read, Sequence) and not isinstance(read, str):
        read = ActionNames(read)
    make = with_options(made, options, f"env_config['world']: {getattr(made, '__name__', 'options')}")
    return partial(GymWorld, make, function_named(read, "read"), function_named(show, "show"))


@dataclass(frozen=True, slots=True)
class ActionNames:
    """Reads the name of an action, in any case, as its number among the names."""

    names: Sequence[str]

    def first_number(self, space: gym.Space) -> int:
        """The number of the first action.

        Raises:
            ContractError: these are not the names of all actions of a `Discrete` space.
        """
        if not isinstance(space, gym.spaces.Discrete) or space.n != len(self.names):
            raise ContractError(f"env_config['world']: 'read' names {len(self.names)} actions, and there are {space}.")
        return int(space.start)

    def __call__(self, text: str) -> int:
        numbers = {name.casefold(): number for number, name in enumerate(self.names)}
        number = numbers.get(text.strip().casefold())
        if number is None:
            raise ToolError(f"Write one of these words: {', '.join(self.names)}.")
        return number


def _takes_env(show: Show) -> bool:
    try:
        return next(iter(inspect.signature(show).parameters), "") == "env"
    except ValueError:  # Some built-in functions have no signature.
        return False
