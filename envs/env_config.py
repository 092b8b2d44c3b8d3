"""The keys of a tool environment's `env_config`, checked in one place."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.envs.protocols import PROTOCOLS
from rllib_arpo.envs.protocols.prompts import Chat, load_tokenizer
from rllib_arpo.envs.protocols.protocol import Protocol, check_goes_on
from rllib_arpo.envs.registry import find_task, task_keys
from rllib_arpo.envs.rewards import Scorer, make_scorer
from rllib_arpo.envs.rewards.compose import Reward
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.support.validation import check_count, check_known
from rllib_arpo.envs.tasks import Task
from rllib_arpo.envs.tasks.seeds import SeedsTask
from rllib_arpo.envs.tools.registry import find_tool
from rllib_arpo.envs.tools.tool import RESERVED_NAMES, Tool
from rllib_arpo.envs.worlds.functions import option_names
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.registry import find_world

#: A turn whose text is the action has this in place of a tool's name.
TEXT = "text"


@dataclass(frozen=True, kw_only=True)
class ToolEnvConfig:
    """The environment's own keys; all other keys of `env_config` are fields of the task's class.

    Attributes:
        model_name_or_path: the model whose tokenizer and chat template are used.
        task: a name in `TASKS`, or your own task's class, itself or as "module:Class"; "seeds" needs a world.
        world: the world in which trajectories act (see `find_world`), in addition to the tools.
        max_context_tokens: the most tokens that prompt and response of a path may have together.
        max_prompt_tokens: the most tokens of a question's prompt; None: as many as leave room for a response.
        max_response_tokens: the most tokens of a path after its prompt, from the model and from tools.
        max_turn_tokens: the most generated tokens of one turn; None: only max_response_tokens limits it.
        max_tool_calls: the most calls that a path may execute, where texts that a world takes count as calls; the next
            one ends the path.
        max_calls_per_tool: tool name -> the most calls of this tool that a path may execute; a refusal answers further
            calls, and the path goes on.
        protocol: a name in `PROTOCOLS`.
        tools: tool -> its configuration, or a list of tools. A tool is a name in `TOOLS`, or your own function or
            class, as the object or as "module:name" (Tune wants texts as keys). None: the task's tools with its
            defaults; {}: no tools, and a prompt that mentions none.
        reward: a name in `REWARDS`, your own function, as the object or as "module:function", or a mapping of these to
            weights.
        qa_metric: "f1", "exact_match" or "judge".
        judge: fields of `ChatClient`, for qa_metric="judge".
        chat_template_kwargs: arguments for the chat template (`enable_thinking`, ...).
    """

    model_name_or_path: str
    task: str | type[Task] = "seeds"
    world: Any = None
    max_context_tokens: int = 4096
    max_prompt_tokens: int | None = None
    max_response_tokens: int = 4096
    max_turn_tokens: int | None = None
    max_tool_calls: int = 3
    max_calls_per_tool: Mapping[str, int] = field(default_factory=dict)
    protocol: str = "tags"
    tools: Mapping[Any, Mapping[str, Any]] | Sequence[Any] | None = None
    reward: str | Reward | Mapping[str | Reward, float] = "hierarchical"
    qa_metric: str = "f1"
    judge: Mapping[str, Any] | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_known([self.protocol], PROTOCOLS, "protocol")
        self.make_scorer()
        for key in ("max_context_tokens", "max_prompt_tokens", "max_response_tokens", "max_turn_tokens"):
            if (value := getattr(self, key)) is not None:
                check_count(key, value, 1)
        check_count("max_tool_calls", self.max_tool_calls, 0)
        if not isinstance(self.max_calls_per_tool, Mapping):
            raise ValueError("env_config['max_calls_per_tool'] must be an object: tool name -> number of calls.")
        for name, limit in self.max_calls_per_tool.items():
            key = f"env_config['max_calls_per_tool'][{name!r}]"
            if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
                raise ValueError(f"{key} must be an integer >= 1, not {limit!r}.")

    def make_scorer(self) -> Scorer:
        """The scorer, which compares answers and rewards finished paths."""
        return make_scorer(self.reward, self.qa_metric, self.judge)

    @functools.cached_property
    def make_world(self) -> WorldMaker | None:
        """The maker of worlds; None: there are none."""
        return None if self.world is None else find_world(self.world)

    def make_chat(self) -> Chat:
        """The model's tokenizer and chat template.

        Raises:
            ValueError: the model has no tokenizer.
        """
        return Chat(load_tokenizer(self.model_name_or_path), dict(self.chat_template_kwargs))

    def make_protocol(self, tools: Mapping[str, Tool], chat: Chat) -> Protocol:
        """The protocol for these tools.

        Raises:
            ValueError: the chat template does not suit it, or the world.
        """
        from jinja2 import TemplateError

        shielded = {name: tool.shielded(chat.shield) for name, tool in tools.items()}
        protocol = PROTOCOLS[self.protocol](shielded, chat)
        if self.make_world is not None and (self.make_world.sample.takes_text or self.make_world.sample.takes_turns):
            try:
                check_goes_on(chat, protocol.functions, "user")
            except (ValueError, TemplateError) as error:
                raise ValueError(f"env_config['world'] talks with the model, and {first_line(error)}.") from error
        return protocol


def read_env_config(env_config: Mapping[str, Any]) -> tuple[ToolEnvConfig, Task, dict[str, Tool]]:
    """Checks `env_config` and builds its parts. Cheap: starts no process, opens no index, loads no model.

    Raises:
        ValueError: a key, a task, a tool or one of its options is unknown (with the nearest known name), or wrong.
        DataError: a data file is missing or not readable.
    """
    own = {f.name for f in dataclasses.fields(ToolEnvConfig)}
    if env_config.get("model_name_or_path") is None:
        raise ValueError("env_config has no 'model_name_or_path'.")
    name = env_config.get("task")
    if name is None and env_config.get("world") is None:
        raise ValueError("env_config has neither a 'task' nor a 'world'.")
    name = "seeds" if name is None else name
    task_class: Any = find_task(name)
    of_task = task_keys(name)
    check_known(env_config, own | of_task, "env_config key")
    check_count("seed", env_config.get("seed", 0), 0)
    config = ToolEnvConfig(**{key: value for key, value in env_config.items() if key in own})
    task: Task = task_class(**{key: value for key, value in env_config.items() if key in of_task})
    if isinstance(task, SeedsTask) and config.world is None:
        raise ValueError("env_config['task']: 'seeds' needs a 'world', which asks the questions.")
    if config.make_world is not None and config.make_world.sample.takes_turns:
        _check_turns(config, config.make_world)
        tools: dict[str, Tool] = {}
    else:
        tools = _make_tools(config, task)
    check_known(config.max_calls_per_tool, tools, "tool in env_config['max_calls_per_tool']")
    return config, task, tools


def _check_turns(config: ToolEnvConfig, world: WorldMaker) -> None:
    if config.protocol != "function_calling":
        raise ValueError("env_config['protocol'] must be 'function_calling' for a world that takes turns.")
    for key, value in (("['tools']", config.tools), ("['world']: instruction", world.sample.instruction)):
        if value:
            raise ValueError(
                f"env_config{key} would do nothing: {world.name} takes turns, and the model reads only its messages."
            )


def _make_tools(config: ToolEnvConfig, task: Task) -> dict[str, Tool]:
    chosen = task.tools if config.tools is None else config.tools
    if not isinstance(chosen, Mapping | list | tuple):
        raise ValueError(f"env_config['tools'] must be a list of tools, or an object: tool -> options, not {chosen!r}.")
    tools: dict[str, Tool] = {}
    for name in chosen:
        tool_class: Any = find_tool(name)
        given = chosen[name] if isinstance(chosen, Mapping) else {}
        if not isinstance(given, Mapping):
            raise ValueError(f"env_config['tools'][{name!r}] must be an object of options, not {given!r}.")
        options = {**task.tool_defaults().get(str(name), {}), **given}
        label = name if isinstance(name, str) else getattr(name, "__name__", str(name))
        check_known(options, option_names(tool_class), f"option of the tool {label!r}")
        for tool_name, tool in tool_class(**options).expand().items():
            if tool_name in tools:
                raise ValueError(f"env_config['tools'] has two tools {tool_name!r}.")
            tools[tool_name] = tool
    for tool in config.make_world.tools() if config.make_world else ():
        if tool.name in (*tools, *RESERVED_NAMES, TEXT):
            raise ValueError(f"env_config['world']: its tool {tool.name!r} needs another name.")
        tools[tool.name] = tool
    for tool in tools.values():
        tool.check_schema()
    return tools
