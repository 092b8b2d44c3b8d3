"""Plans an evaluation: the settings that all arms share, and an arm for each model and task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.core.entropy import ENTROPY_ESTIMATORS
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
from rllib_arpo.options.rules import ANY, COUNT, FINITE, NOT_NEGATIVE, POSITIVE, SEED, SWITCH, at_least, optional
from rllib_arpo.options.settings import check_settings, setting
from rllib_arpo.rollout.settings import RolloutSettings


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """The settings of all arms. A folder has results of one such set of settings. None means off, or as usual."""

    samples: int = setting(1, at_least(1), "samples per question, each with its own seed")
    temperature: float = setting(1.0, NOT_NEGATIVE, "0 decodes greedily and needs --samples 1")
    top_p: float | None = setting(None, optional(FINITE),
        "sample from the likeliest tokens with this share of the probability; default: all")  # fmt: skip
    top_k: int | None = setting(None, optional(COUNT), "sample from this many of the likeliest tokens; default: all")
    repetition_penalty: float | None = setting(None, optional(FINITE),
        "divide positive logits of earlier tokens by this; default: none")  # fmt: skip
    seed: int = setting(0, SEED, "the samples' seeds are made from this one")
    limit: int | None = setting(None, optional(at_least(1)), "ask only the first questions of each task, this many")
    protocol: str | None = setting(None, ANY, "how the model calls tools; default: the environment's protocol")
    max_tool_calls: int = setting(3, COUNT, "as in ARPOConfig")
    max_response_tokens: int = setting(1024, at_least(1), "as in ARPOConfig")
    max_turn_tokens: int | None = setting(None, optional(at_least(1)), "as in ARPOConfig")
    max_context_tokens: int = setting(4096, at_least(1), "as in ARPOConfig")
    question_deadline_s: float = setting(1800.0, POSITIVE,
        "seconds after which a question's unfinished samples are cut off")  # fmt: skip
    engine: str = setting("vllm", ANY, "vllm, or scripted, which has no model and calls the tools at random")
    entropies: bool = setting(False, SWITCH, "keep the entropy of every generated token in the record")
    entropy_estimator: str = setting("exact", ANY, "as in ARPOConfig", choices=tuple(ENTROPY_ESTIMATORS))
    #: As in `ARPOConfig`.
    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    #: k and the scale of dH after tool responses; without them dH is not measured.
    entropy_window: int | None = None
    entropy_normalization: str | None = None

    def __post_init__(self) -> None:
        check_settings(self)
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

    def env_config(self, task: str, own: Mapping[str, Any]) -> dict[str, Any]:
        """The environment's configuration without the model.

        Args:
            own: the user's keys for this task; they override everything else.
        """
        keys = ("max_context_tokens", "max_response_tokens", "max_turn_tokens", "max_tool_calls", "protocol")
        shared = {key: getattr(self, key) for key in keys}
        if "split" in task_keys(task):
            shared["split"] = TEST
        given = {key: value for key, value in shared.items() if value is not None}
        return {**given, **own, "task": task}


@dataclass(frozen=True, slots=True)
class Arm:
    """One model on one task.

    Attributes:
        env_config: the complete configuration of its environments.
        numbers: the numbers of its questions.
        first_env: one of its environments.
    """

    model: Model
    task: str
    env_config: dict[str, Any]
    numbers: range
    first_env: ToolEnv

    @property
    def name(self) -> str:
        """The arm's name in messages."""
        return f"{self.model.name} {self.task}"

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
        """Settings for training's sampler: no forks, a seed for every request."""
        limits = self.first_env.config
        return RolloutSettings(
            num_rollouts=settings.samples,
            num_initial_rollouts=settings.samples,
            branching=BranchingParams(branching="never"),
            entropy_window=settings.entropy_window or 0,
            entropy_estimator=settings.entropy_estimator,
            entropy_normalization=settings.entropy_normalization or "sum_log_vocab",
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
    for task in tasks:
        read_env_config({**settings.env_config(task, own.get(task, {})), "model_name_or_path": "(any)"})


def make_arms(
    models: Sequence[Model],
    tasks: Sequence[str],
    own: Mapping[str, Mapping[str, Any]],
    settings: EvaluationSettings,
) -> list[Arm]:
    """Makes and checks all arms: it builds every question's prompt, and every tool is ready.

    Raises:
        CommandError: a key is unknown, a data file is wrong, or a tool does not start.
    """
    return [_make_arm(model, task, own.get(task, {}), settings) for model in models for task in tasks]


def _make_arm(model: Model, task: str, own: Mapping[str, Any], settings: EvaluationSettings) -> Arm:
    env_config = settings.env_config(task, own) | {"model_name_or_path": model.path}
    with command_errors():
        env = ToolEnv(env_config)
    available, limit = env.num_questions, settings.limit
    if available is None and limit is None:
        raise CommandError(f"The task {task!r} never runs out of questions: set --limit.")
    numbers = range(min(n for n in (available, limit) if n is not None))
    if not numbers:
        raise CommandError(f"The task {task!r} has no questions.")
    if env.config.make_world is None:  # Only a world itself can say what it begins with.
        with command_errors((DataError,)):
            for number in numbers:
                env.reset(options={OPTION_QUESTION: number})
    return Arm(model, task, env_config, numbers, env)
