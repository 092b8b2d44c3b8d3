"""Makes the worlds of an environment, and the tools by which the model acts in them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.envs.errors import ContractError
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.tools.schema_tool import SchemaTool
from rllib_arpo.envs.tools.tool import ToolResult
from rllib_arpo.envs.worlds.running import RunningWorld
from rllib_arpo.envs.worlds.world import Call, ForkMethod, World

_logger = logging.getLogger(__name__)


class WorldMaker:
    """Makes the worlds of one kind. All of them fork by the first method that works.

    Attributes:
        name: the beginning of messages: "The world 'safe'".
        make: makes one.
    """

    def __init__(self, name: str, make: Callable[[], World], common: Mapping[str, Any] | None = None):
        """Makes no world yet. `common`: attribute -> the value that it gets in all worlds."""
        self.name, self.make, self._common = name, make, common or {}
        self._method: ForkMethod | None = None

    @functools.cached_property
    def sample(self) -> World:
        """A world that is never reset: it says which tools there are, and what it takes."""
        return self()

    def __call__(self) -> World:
        return self.with_common(self.make())

    def with_common(self, world: World) -> World:
        for name, value in self._common.items():
            setattr(world, name, value)
        return world

    @property
    def fork_method(self) -> ForkMethod:
        """The method by which all worlds fork: the one asked for, or the first that works."""
        if self._method is None:
            world = self.sample
            forks = type(world).fork is not World.fork
            if world.forks_by not in (None, "copy", "replay", *(["fork"] if forks else [])):
                raise ContractError(f"{self.name} cannot fork by {world.forks_by!r}.")
            asked = "fork" if world.fork_is_copy and world.forks_by == "copy" else world.forks_by
            self._method = asked or ("fork" if forks else "copy")
        return self._method

    @property
    def copies(self) -> bool:
        """Whether worlds fork by `copy.deepcopy`, here or elsewhere."""
        return self.fork_method == "copy" or (self.fork_method == "fork" and self.sample.fork_is_copy)

    def copied(self, running: RunningWorld) -> RunningWorld | None:
        """A copy; None if Python cannot copy it. Raises the errors of `replay_instead`."""
        try:
            return running.copy()
        except Exception as error:
            self.replay_instead(f"{type(error).__name__}: {first_line(error)}")
            return None

    def replay_instead(self, raised: str) -> None:
        """Replays from now on, since `copy.deepcopy` raised this.

        Raises:
            ContractError: `forks_by` demands copies.
        """
        if self.sample.forks_by == "copy":
            raise ContractError(f'{self.name} has forks_by = "copy", and copy.deepcopy raises {raised}.')
        if self._method != "replay":
            _logger.warning("%s cannot be copied (%s): its forks are replayed.", self.name, raised)
        self._method = "replay"

    def tools(self) -> list[WorldTool]:
        """A tool for each call that the worlds take."""
        return [
            WorldTool(
                name=name,
                name_in_world=name,
                description=schema.get("description", ""),
                input_schema={key: value for key, value in schema.items() if key != "description"},
                make_world=self,
                timeout_s=self.sample.timeout_s,
                max_result_tokens=self.sample.max_reply_tokens,
            )
            for name, schema in self.sample.tools.items()
        ]


@dataclass(frozen=True, kw_only=True)
class WorldTool(SchemaTool):
    """One of the calls that a world takes.

    Attributes:
        name_in_world: the name by which the world knows it.
    """

    name_in_world: str
    make_world: WorldMaker = field(repr=False)  # type: ignore[misc]

    def as_call(self, argument: Mapping[str, Any]) -> Call:
        return Call(self.name_in_world, argument)

    async def __call__(self, argument: Mapping[str, Any]) -> ToolResult:
        raise TypeError(f"{self.name} acts in a world.")
