"""Plans an evaluation: the settings that all arms share, and an arm for each model, prompting style and task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.core.reshaping import Reshaping
from rllib_arpo.engine.engine import ALL, WINDOWS
from rllib_arpo.envs.env_config import read_env_config
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.forkable_env import OPTION_QUESTION
from rllib_arpo.envs.registry import find_task, task_keys
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.envs.tasks.task import TEST
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.errors import CommandError, command_errors
from rllib_arpo.evaluation.model_folders import Model
from rllib_arpo.options.rules import NOT_NEGATIVE, POSITIVE, SEED, at_least, optional
from rllib_arpo.rollout.settings import RolloutSettings

TOOLS, DIRECT = "tools", "direct"
#: Prompting style -> its changes of the task's `env_config`. "tools": the model has the task's tools, or the user's.
STYLES: dict[str, dict[str, Any]] = {DIRECT: {"tools": {}}, TOOLS: {}}
#: Rules for settings from the command line. `Reshaping` and `env_config` check their own keys.
RULES = {
    "samples": at_least(1),
    "temperature": NOT_NEGATIVE,
    "seed": SEED,
    "limit": optional(at_least(1)),
    "max_context_tokens": at_least(1),
    "max_response_tokens": at_least(1),
    "max_turn_tokens": optional(at_least(1)),
    "question_deadline_s": POSITIVE,
}
#: The key of `env_config` that limits the calls of each tool.
TOOL_LIMITS = "max_calls_per_tool"


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """The settings of all arms. A folder has results of one such set of settings.

    Attributes:
        samples: trajectories per question, each with its own seed.
        temperature: the sampling temperature; 0 decodes greedily.
        top_p, top_k, repetition_penalty: as in `Reshaping`; None: off.
        seed: the samples' seeds are made from this one.
        limit: ask only this many questions of each task, from the first on; None: all.
        engine, engine_kwargs, dtype: as in `ARPOConfig.language_model`.
        max_context_tokens, max_response_tokens, max_turn_tokens, max_tool_calls: as in `ARPOConfig.adaptive_rollout`.
        max_calls_per_tool: tool name -> limit of its executed calls, for tasks that have the tool; None: no limits.
        protocol: how the model calls tools; None: the environment's default.
        few_shot: number of worked examples in the prompt, for tasks that have some; None: the task's default.
        question_deadline_s: seconds after which a question's unfinished trajectories are cut off.
        entropies: whether to keep the entropies of all generated tokens.
        entropy_estimator: how to estimate them, a key of `core.entropy.ENTROPY_ESTIMATORS`.
    """

    samples: int = 1
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    seed: int = 0
    limit: int | None = None
    engine: str = "vllm"
    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    max_context_tokens: int = 4096
    max_response_tokens: int = 1024
    max_turn_tokens: int | None = None
    max_tool_calls: int = 3
    max_calls_per_tool: Mapping[str, int] | None = None
    protocol: str | None = None
    few_shot: int | None = None
    question_deadline_s: float = 1800.0
    entropies: bool = False
    entropy_estimator: str = "exact"

    def __post_init__(self) -> None:
        for key, rule in RULES.items():
            rule.check(key, getattr(self, key))
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(f"samples={self.samples}: all samples are equal at temperature 0; set samples=1.")
        for name in ("top_p", "top_k"):
            if self.temperature == 0 and (value := getattr(self, name)) is not None:
                raise ValueError(f"{name}={value}: the likeliest token wins at temperature 0; leave {name} out.")
        if (penalty := self.reshaping.repetition_penalty) != 1 and self.entropies:
            raise ValueError(
                f"repetition_penalty={penalty}: the engine cannot measure entropies with a penalty; leave one out."
            )

    @property
    def reshaping(self) -> Reshaping:
        given = {key: getattr(self, key) for key in ("top_p", "top_k", "repetition_penalty")}
        return Reshaping(**{key: value for key, value in given.items() if value is not None})

    def env_config(self, task: str, style: str, own: Mapping[str, Any]) -> dict[str, Any]:
        """The environment's configuration without the model.

        Args:
            own: the user's keys for this task; they override everything except the style's keys.
        """
        keys = ("max_context_tokens", "max_response_tokens", "max_turn_tokens", "max_tool_calls", "protocol")
        shared = {key: getattr(self, key) for key in keys}
        of_task = {"split": TEST, "few_shot": self.few_shot}
        shared |= {key: value for key, value in of_task.items() if key in task_keys(task)}
        given = {key: value for key, value in shared.items() if value is not None}
        complete = {**given, **own, **STYLES[style], "task": task}
        if style == DIRECT:
            complete.pop(TOOL_LIMITS, None)
        elif self.max_calls_per_tool and TOOL_LIMITS not in own:
            tools = tools_of(complete)
            complete[TOOL_LIMITS] = {name: n for name, n in self.max_calls_per_tool.items() if name in tools}
        return complete


@dataclass(frozen=True, slots=True)
class Arm:
    """One model on one task with one prompting style.

    Attributes:
        env_config: the complete configuration of its environments.
        numbers: the numbers of its questions.
        first_env: one of its environments.
    """

    model: Model
    style: str
    task: str
    env_config: dict[str, Any]
    numbers: range
    first_env: ToolEnv

    @property
    def name(self) -> str:
        """The arm's name in messages."""
        return f"{self.model.name} {self.style} {self.task}"

    @property
    def label(self) -> str:
        """Model and style, as a report names them."""
        return f"{self.model.label} {self.style}"

    @property
    def own_config(self) -> dict[str, Any]:
        """The environment's configuration without the model."""
        return {key: value for key, value in self.env_config.items() if key != "model_name_or_path"}

    def settings(self) -> dict[str, Any]:
        """The arm's own settings on which its results depend."""
        data = dict(self.first_env.task.inputs())
        for tool in self.first_env.tools.values():
            data |= tool.inputs()
        return {"model_fingerprint": self.model.fingerprint, "env_config": self.own_config, "data": data}

    def rollout_settings(self, settings: EvaluationSettings) -> RolloutSettings:
        """Settings for training's sampler: no forks, no entropy windows, a seed for every request."""
        limits = self.first_env.config
        return RolloutSettings(
            num_rollouts=settings.samples,
            num_initial_rollouts=settings.samples,
            branching=BranchingParams(branching="never"),
            entropy_window=0,
            entropy_estimator=settings.entropy_estimator,
            entropy_normalization="sum_log_vocab",
            temperature=settings.temperature,
            max_context_tokens=limits.max_context_tokens,
            max_response_tokens=limits.max_response_tokens,
            max_turn_tokens=limits.max_turn_tokens,
            question_deadline_s=settings.question_deadline_s,
            seed=settings.seed,
            deterministic=True,
            record_entropies=ALL if settings.entropies else WINDOWS,
            reshaping=settings.reshaping,
        )


def tools_of(env_config: Mapping[str, Any]) -> list[str]:
    """The names of an environment's tools. `env_config` is complete except for the model."""
    return list(read_env_config({**env_config, "model_name_or_path": "(any)"})[2])


def check_tasks(tasks: Sequence[str], own: Mapping[str, Mapping[str, Any]], settings: EvaluationSettings) -> None:
    """Checks everything that needs no model: names, keys, and that data files exist.

    Args:
        own: task -> the user's `env_config` keys.

    Raises:
        ValueError: a task, a tool or a key is unknown, or a task has a configuration but is not evaluated.
        DataError: a data file is missing or cannot be read.
    """
    if not tasks:
        raise ValueError("There is no task: name one with --tasks or --suite.")
    for task in tasks:
        find_task(task)
    check_known(own, tasks, "task in --data or --env-config")
    tools = {name for task in tasks for name in tools_of(settings.env_config(task, TOOLS, own.get(task, {})))}
    check_known(settings.max_calls_per_tool or {}, tools, "tool in --max-calls-per-tool")


def make_arms(
    models: Sequence[Model],
    baselines: Sequence[str],
    tasks: Sequence[str],
    own: Mapping[str, Mapping[str, Any]],
    settings: EvaluationSettings,
) -> list[Arm]:
    """Makes and checks all arms: it builds every question's prompt, and every tool is ready.

    Args:
        baselines: more styles for the first model; all models are asked in the style `TOOLS`.

    Raises:
        CommandError: a style or a key is unknown, a data file is wrong, or a tool does not start.
    """
    with command_errors():
        check_known(baselines, STYLES, "baseline")
    styles = {model: [TOOLS] for model in models}
    styles[models[0]] = [style for style in STYLES if style in {*baselines, TOOLS}]
    return [
        _make_arm(model, style, task, own.get(task, {}), settings)
        for model in models
        for style in styles[model]
        for task in tasks
    ]


def _make_arm(model: Model, style: str, task: str, own: Mapping[str, Any], settings: EvaluationSettings) -> Arm:
    env_config = settings.env_config(task, style, own) | {"model_name_or_path": model.path}
    with command_errors():
        env = ToolEnv(env_config)
    available, limit = env.num_questions, settings.limit
    if available is None and limit is None:
        raise CommandError(f"The task {task!r} never runs out of questions: set --limit.")
    numbers = range(min(n for n in (available, limit) if n is not None))
    if not numbers:
        raise CommandError(f"The task {task!r} has no questions.")
    with command_errors((DataError,)):
        for number in numbers:
            env.reset(options={OPTION_QUESTION: number})
    return Arm(model, style, task, env_config, numbers, env)
