"""Plain classes as worlds: the contract of `environment_factory` of TRL's trainers.

`reset(**row)` begins a trajectory and may return a text, which the prompt ends with; all other public methods are
tools; `get_reward()`, if the class has it, is the reward of a finished trajectory.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.rewards.compose import value_of
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.support.validation import check_options
from rllib_arpo.envs.worlds.functions import Signature, answer_of, called
from rllib_arpo.envs.worlds.world import Call, Reply, World

_RESET, _REWARD = "reset", "get_reward"


class ObjectWorld(World):
    """A world around an object of a user's class. The model reads the exceptions that its methods raise.

    Methods run in the event loop of all questions; plain ones (`def`) should not wait there.

    Attributes:
        made: the class.
        signatures: tool name -> its signature.
    """

    made: ClassVar[Any]
    signatures: ClassVar[Mapping[str, Signature]]

    def __init__(self, *, blocking: bool = False, **options: Any):
        """Creates no object yet.

        Args:
            blocking: whether methods wait (`time.sleep`, `requests`): each call then runs in a thread, where `random`
                does not have this world's state.
            options: the class's own arguments.
        """
        self._blocking, self._options = blocking, options
        self.object: Any = None

    async def reset(self, question: Question) -> str:
        if type(self).score is World.score and not question.answers:
            raise DataError(f"{question.source}: no right answer, and {self.made.__name__} has no `{_REWARD}`.")
        try:
            inspect.signature(self.made.reset).bind(None, **question.row)
        except TypeError as error:
            what = f"{self.made.__name__}.{_RESET}"
            raise DataError(f"{question.source}: {what} does not take this row: {first_line(error)}.") from error
        self.object = await called(partial(self.made, **self._options), self._blocking)
        # A copy: what it does with its row must not change the rows of other trajectories.
        opening = await called(partial(self.object.reset, **copy.deepcopy(dict(question.row))), self._blocking)
        return "" if opening is None else opening

    async def act(self, action: Call | str) -> Reply:
        assert isinstance(action, Call)
        args, kwargs = self.signatures[action.tool].read(action.arguments)
        method = getattr(self.object, action.tool)
        return Reply(await answer_of(method, *args, in_a_thread=self._blocking, **kwargs))


async def _reward(world: ObjectWorld, path: FinishedPath) -> Score | None:
    """The object's reward; None after a wrong format: then the configured reward decides."""
    if not path.format_valid:
        return None
    rewarded = partial(called, world.object.get_reward, world._blocking)
    return Score.of(await value_of(f"{world.made.__name__}.{_REWARD}", rewarded))


def class_adapter(made: type) -> Callable[..., Callable[[], World]]:
    """A function that takes the options of a class, and `blocking`, and returns the maker of its worlds.

    Raises:
        ValueError: the class lacks a method, or a model cannot call one of its methods.
    """
    # As in TRL, methods of base classes are tools as well, and properties are not.
    methods = dict(inspect.getmembers(made, inspect.isfunction))
    what, names = f"env_config['world']: {made.__name__}", [name for name in methods if name[0] != "_"]
    if _RESET not in names:
        raise ValueError(f"{what} is neither a World nor a class with a method `{_RESET}`.")
    signatures = {}
    for name in names:
        if name in (_RESET, _REWARD):
            continue
        try:
            signatures[name] = Signature.of(inspect.getattr_static(made, name).__get__(object(), made))
        except ValueError as error:
            raise ValueError(f"{what}.{name}: {error}.") from error
    if _REWARD in names:
        check_options(partial(made.get_reward, None), {}, f"{what}.{_REWARD}")  # type: ignore[attr-defined]
    score = {"score": _reward} if _REWARD in names else {}
    schemas = {name: {"description": one.description, **one.schema} for name, one in signatures.items()}
    # A type of its own: errors name the class, and copies of a world share the schemas.
    world: Any = type(
        made.__name__, (ObjectWorld,), {"made": made, "signatures": signatures, "tools": schemas, **score}
    )

    def adapt(*, blocking: bool = False, **options: Any) -> Callable[[], World]:
        check_options(made, options, what)
        return partial(world, blocking=blocking, **options)

    return adapt
