"""The far side of `interpreter.py`: worlds in a process of another Python, which answers on a socket.

It runs as a script, in Python 3.9 or newer. It imports only the standard library, the world's own modules, and numpy if
that is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import importlib.util
import inspect
import json
import os
import random
import socket
import sys
import traceback
import typing
from collections.abc import Iterator
from typing import Any

#: Type of Python -> type of JSON schemas.
_JSON_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}
#: Public methods that the model cannot call.
_OWN_METHODS = ("reset", "get_reward")


class WorldLike:
    """An object with `reset(row)`, `act(text or {"tool", "arguments"})` and maybe `score(turns)`, `close()`.

    `act` returns a text, or (text, reward, done). The model reads the message of a ValueError.
    """

    read_by_model: tuple[type[BaseException], ...] = (ValueError,)

    def __init__(self, world: Any):
        self.world = world

    def tools(self) -> dict[str, Any]:
        return dict(getattr(self.world, "tools", None) or {})

    def takes_text(self) -> bool:
        return bool(getattr(self.world, "takes_text", not self.tools()))

    def reset(self, row: dict[str, Any]) -> Any:
        return finished(self.world.reset(row))

    def act(self, action: Any) -> tuple[Any, Any, Any]:
        """The reply's text, its reward, and whether it ends the trajectory."""
        reply = finished(self.world.act(action))
        return reply if isinstance(reply, tuple) and len(reply) == 3 else (reply, 0.0, False)

    def score(self, turns: list[str]) -> Any:
        return finished(self.world.score(turns)) if hasattr(self.world, "score") else None

    def close(self) -> None:
        if hasattr(self.world, "close"):
            finished(self.world.close())


class GymLike(WorldLike):
    """An object with `reset(seed=)` and `step(text)`, like Gymnasium's environments."""

    paid = 0.0

    def reset(self, row: dict[str, Any]) -> Any:
        seen = finished(self.world.reset(**row))
        return seen[0] if isinstance(seen, tuple) else seen

    def act(self, action: Any) -> tuple[Any, Any, Any]:
        seen, reward, *ends = finished(self.world.step(action))
        self.paid += float(reward)
        return seen, reward, any(map(bool, ends[:-1]))

    def score(self, turns: list[str]) -> Any:
        return {"reward": 0.0, "accuracy": self.paid}


class MethodsLike(WorldLike):
    """An object whose public methods are tools, as in TRL's environments, with `reset(**row)` and maybe `get_reward()`.

    The tools are those that `classes.py` lists. The model reads whatever a method raises.
    """

    read_by_model = (Exception, SystemExit)

    def tools(self) -> dict[str, Any]:
        names = [name for name, _ in inspect.getmembers(type(self.world), inspect.isfunction)]
        tools = [name for name in names if not name.startswith("_") and name not in _OWN_METHODS]
        return {name: schema(getattr(self.world, name)) for name in tools}

    def reset(self, row: dict[str, Any]) -> Any:
        return finished(self.world.reset(**row)) if hasattr(self.world, "reset") else ""

    def act(self, action: Any) -> tuple[Any, Any, Any]:
        return finished(getattr(self.world, action["tool"])(**action["arguments"])), 0.0, False

    def score(self, turns: list[str]) -> Any:
        return float(finished(self.world.get_reward())) if hasattr(self.world, "get_reward") else None

    def close(self) -> None:
        """Nothing: a method `close` is a tool."""


def adapted(world: Any) -> WorldLike:
    kind = WorldLike if hasattr(world, "act") else GymLike if hasattr(world, "step") else MethodsLike
    return kind(world)


def schema(method: Any) -> dict[str, Any]:
    """JSON schema of a method's arguments, from its type hints; `**` parameters are left out, as on the near side.

    Raises:
        ValueError: a parameter cannot be given by name.
    """
    try:
        hints = typing.get_type_hints(method)
    except Exception:  # Names that only a type checker knows.
        hints = {}
    parameters = [one for one in inspect.signature(method).parameters.values() if one.kind != one.VAR_KEYWORD]
    for one in parameters:
        if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL):
            raise ValueError(f"{method.__name__}: its parameter {one.name!r} cannot be given by name")
    kinds = {one.name: hints.get(one.name) for one in parameters}
    types = {name: _JSON_TYPES.get(typing.get_origin(kind) or kind) for name, kind in kinds.items()}
    return {
        "type": "object",
        "properties": {name: {"type": kind} if kind else {} for name, kind in types.items()},
        "required": [one.name for one in parameters if one.default is inspect.Parameter.empty],
        "description": inspect.getdoc(method) or "",
    }


class RandomNumbers:
    """The states of `random` and `numpy.random`, swapped in while a world runs."""

    def __init__(self, seed: int):
        self._states: dict[str, Any] = {"random": random.Random(seed).getstate()}
        if "numpy" in sys.modules:
            self._states["numpy"] = sys.modules["numpy"].random.RandomState(seed).get_state()

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The block's code draws from these states. It must not wait."""
        outside = self._now()
        self._set(self._states)
        try:
            yield
        finally:
            self._states = self._now()
            self._set(outside)

    def _now(self) -> dict[str, Any]:
        numpy = sys.modules.get("numpy")
        return {"random": random.getstate(), **({"numpy": numpy.random.get_state()} if numpy else {})}

    def _set(self, states: dict[str, Any]) -> None:
        random.setstate(states["random"])
        if "numpy" in states:
            sys.modules["numpy"].random.set_state(states["numpy"])


class Worlds:
    """The worlds of this process, each with its random numbers, by number."""

    def __init__(self, named: str, options: dict[str, Any]):
        module, _, name = named.rpartition(":")
        self._make = getattr(imported(module), name)
        # A world may import numpy later and draw at once: its first draws must be seeded as well.
        with contextlib.suppress(ImportError):
            importlib.import_module("numpy")
        self._options = options
        self._worlds: dict[int, tuple[WorldLike, RandomNumbers]] = {}

    def _made(self) -> WorldLike:
        return adapted(finished(self._make(**self._options)))

    def describe(self) -> dict[str, Any]:
        world = self._made()
        described = {"tools": world.tools(), "takes_text": world.takes_text()}
        world.close()
        return described

    def reset(self, world: int, row: dict[str, Any], seed: int) -> str:
        random_state = RandomNumbers(seed)
        with random_state.swapped_in():
            made = self._made()
            self._worlds[world] = made, random_state
            return text(made.reset(row))

    def act(self, world: int, action: Any) -> dict[str, Any]:
        made, random_state = self._worlds[world]
        with random_state.swapped_in():
            try:
                said, reward, done = made.act(action)
            except made.read_by_model as error:
                kinds = [kind.__name__ for kind in type(error).__mro__ if kind not in Exception.__mro__]
                message = repr(error) if isinstance(error, SystemExit) else str(error)
                return {"text": message or type(error).__name__, "error": kinds or ["Exception"]}
        return {"text": text(said), "reward": float(reward), "done": bool(done)}

    def score(self, world: int, turns: list[str], format_valid: bool) -> dict[str, Any] | None:
        made, random_state = self._worlds[world]
        if isinstance(made, MethodsLike) and not format_valid:
            return None  # As on the near side, the configured reward judges a wrong format.
        with random_state.swapped_in():
            score = made.score(turns)
        return score if score is None or isinstance(score, dict) else {"reward": float(score), "accuracy": float(score)}

    def fork(self, world: int, child: int) -> None:
        self._worlds[child] = copy.deepcopy(self._worlds[world])

    def close(self, world: int) -> None:
        if world in self._worlds:
            self._worlds.pop(world)[0].close()


def imported(module: str) -> Any:
    """A module by its name, or by the path of its file."""
    if not module.endswith(".py"):
        return importlib.import_module(module)
    spec = importlib.util.spec_from_file_location("world_of_a_file", module)
    assert spec is not None and spec.loader is not None
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)


def finished(value: Any) -> Any:
    """`value`, or its result if it is awaitable."""
    return _loop().run_until_complete(value) if inspect.isawaitable(value) else value


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def main(descriptor: int) -> None:
    """Answers requests until the near side closes the socket."""
    # Modules are imported from the near side's working folder, not from this file's.
    sys.path[0] = os.getcwd()
    stream = socket.socket(fileno=descriptor).makefile("rwb")
    worlds = None
    for line in stream:
        request = json.loads(line)
        number, do = request.pop("id"), request.pop("do")
        try:
            if do == "begin":
                worlds, do, request = Worlds(**request), "describe", {}
            answer = {"id": number, "value": getattr(worlds, do)(**request)}
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raised = f"{type(error).__name__}: {error}"
            answer = {"id": number, "raised": raised, "traceback": traceback.format_exc()}
        stream.write(json.dumps(answer, default=str).encode() + b"\n")
        stream.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
