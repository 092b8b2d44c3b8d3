"""`ARPOEnvRunner`: owns an inference engine and a pool of environments, and keeps many questions in flight."""

from __future__ import annotations

import itertools
import logging
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME, WEIGHTS_SEQ_NO
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_arpo.engine import make_engine
from rllib_arpo.engine.engine import Engine, EngineConfig
from rllib_arpo.engine.engine_thread import EngineThread
from rllib_arpo.envs.forkable_env import ForkableMultiAgentEnv
from rllib_arpo.logging.progress import RolloutProgress
from rllib_arpo.rollout.make_env import make_env
from rllib_arpo.rollout.metrics import rollout_metrics
from rllib_arpo.rollout.questions import QuestionLoop, Rollout, RolloutError, SampledQuestion
from rllib_arpo.rollout.settings import RolloutSettings
from rllib_arpo.weights import transfer_backend
from rllib_arpo.weights.snapshot import WeightSnapshot, load_and_verify
from rllib_arpo.weights.weight_sync import LoadError, WeightSyncError

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig
    from rllib_arpo.weights.lora import MergedWeights


logger = logging.getLogger("rllib_arpo")

#: Seconds that an engine may take to end.
CLOSE_TIMEOUT_S = 60.0


class ARPOEnvRunner(MultiAgentEnvRunner):
    """Samples whole questions, each as one `MultiAgentEpisode` with one agent per trajectory.

    The policy is an inference engine, not an RLModule: `module` is None and `load_weights` hands the learner's weights
    to the engine. One thread owns the engine, another runs the event loop of environments and tools (`QuestionLoop`).
    `num_envs_per_env_runner` questions are worked on at a time.
    """

    @override(MultiAgentEnvRunner)
    def __init__(self, config: ARPOConfig, **kwargs: Any):
        self._engine_thread = EngineThread()
        # Only for RLlib's own `sample()`: the env runners share the questions out among themselves.
        first, stride = max(kwargs.get("worker_index") or 0, 1) - 1, max(config.num_env_runners, 1)
        self._own_questions: Iterator[int] = itertools.count(first, stride)
        self._envs: dict[bool, list[ForkableMultiAgentEnv]] = {}
        self._questions: QuestionLoop | None = None
        index = kwargs.get("worker_index") or 0
        self._progress = RolloutProgress(f"rollout {index}" if index else "rollout", enabled=config.progress_bar)
        super().__init__(config=config, **kwargs)

    @override(MultiAgentEnvRunner)
    def make_env(self) -> None:
        """Makes the pool of training environments (a dedicated evaluation runner: of its own configuration)."""
        self._envs[self.config.in_evaluation] = self._make_envs(self.config)
        self.env = self._envs[self.config.in_evaluation][0]
        self.num_envs = len(self._envs[self.config.in_evaluation])
        self._make_callback("on_environment_created", env=self.env, env_context=EnvContext(self.config.env_config, 0))

    def _make_envs(self, config: ARPOConfig) -> list[ForkableMultiAgentEnv]:
        make = partial(make_env, config, self.worker_index or 0)
        first = make()
        if not isinstance(first, ForkableMultiAgentEnv):
            raise ValueError(f"env={config.env!r} is a {type(first).__name__}, not a ForkableMultiAgentEnv.")
        return [first, *(first.another() or make() for _ in range(config.num_envs_per_env_runner - 1))]

    @override(MultiAgentEnvRunner)
    def make_module(self) -> None:
        """Starts the engine in the thread that will own it."""
        self.module = None
        if self.env is not None:
            self.engine: Engine = self._engine_thread.call(make_engine, *self._engine_args(), timeout_s=None)

    def _engine_args(self) -> tuple[str, EngineConfig]:
        config = self.config
        return config.engine, EngineConfig(
            model_name_or_path=config.model_name_or_path,
            dtype=config.dtype,
            max_context_tokens=config.max_context_tokens,
            num_threads=config.engine_num_threads,
            seed=(config.seed or 0) + (self.worker_index or 0),
            engine_kwargs=dict(config.engine_kwargs),
            can_sleep=config.sleep_level > 0,
            weight_transfer=transfer_backend(config.weight_sync),
        )

    @override(MultiAgentEnvRunner)
    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[MultiAgentEpisode]:
        """RLlib's call: samples the next `num_episodes` questions (default: one per environment) of this runner."""
        if num_timesteps is not None or random_actions:
            raise ValueError("ARPOEnvRunner.sample takes num_episodes (questions) and no other amount.")
        numbers = list(itertools.islice(self._own_questions, num_episodes or self.num_envs))
        start = time.perf_counter()
        sampled = self.sample_questions(numbers, explore=explore, evaluation=self.config.in_evaluation)
        metrics = rollout_metrics([s.stats for s in sampled], time.perf_counter() - start)
        for name, value in metrics.items():
            self.metrics.log_value(tuple(name.split("/")), value, window=1)
        return [s.episode for s in sampled]

    def exchange(
        self,
        numbers: Sequence[int],
        *,
        evaluation_numbers: Sequence[int] = (),
        weight_version: int | None = None,
        timeout_s: float = 0.0,
    ) -> Rollout | RolloutError:
        """What the driver calls: takes new questions and gives back those that have ended since the last call.

        Questions are sampled in the background, also while the engine gets new weights. An error is a value: RLlib
        lets an env runner exit on any exception, after which nobody knows the cause.

        Args:
            numbers, evaluation_numbers: of the questions to sample beside those that are under way; the latter with
                the environments and settings of the evaluation configuration.
            weight_version: the version that the engine must have if there are new questions.
            timeout_s: how long to wait while no question has ended.
        """
        try:
            # A runner of an evaluation group has nothing but the evaluation configuration.
            self._submit(numbers, evaluation=self.config.in_evaluation, weight_version=weight_version)
            self._submit(evaluation_numbers, evaluation=True, weight_version=weight_version)
            sampled = self._take(timeout_s)
            in_flight = frozenset(self._questions.in_flight if self._questions else ())
            return Rollout(sampled, in_flight, self.metrics.reduce() if sampled else None)
        except Exception as error:
            # A ValueError is bad data or a bug in the environment: the same questions would raise it again.
            if isinstance(error, ValueError):
                return RolloutError(str(error), traceback.format_exc(), retry=False)
            notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
            return RolloutError(f"{type(error).__name__}: {error}{notes}", traceback.format_exc(), retry=True)

    def sample_questions(
        self,
        numbers: Sequence[int],
        *,
        explore: bool | None = None,
        evaluation: bool = False,
        weight_version: int | None = None,
    ) -> list[SampledQuestion]:
        """Samples the questions with these distinct numbers, many at a time; returns them in this order.

        Args:
            numbers: of the task's questions.
            explore: False decodes one greedy trajectory per question; None takes the configuration's word.
            evaluation: whether to use the environments and settings of the evaluation configuration.
            weight_version: the version that the engine must have.

        Raises:
            RuntimeError: the engine has other weights, or questions of `exchange` are under way.
        """
        if self._questions is not None and self._questions.in_flight:
            raise RuntimeError(f"Env runner {self.worker_index} has {len(self._questions.in_flight)} questions to do.")
        self._submit(numbers, evaluation=evaluation, weight_version=weight_version, explore=explore)
        sampled: dict[int, SampledQuestion] = {}
        while len(sampled) < len(numbers):
            sampled |= {question.number: question for question in self._take(None)}
        return [sampled[number] for number in numbers]

    def _submit(
        self, numbers: Sequence[int], *, evaluation: bool, weight_version: int | None, explore: bool | None = None
    ) -> None:
        if not numbers:
            return
        if weight_version is not None and self.engine.weight_version != weight_version:
            raise RuntimeError(
                f"Env runner {self.worker_index} has weights {self.engine.weight_version}, not {weight_version}."
            )
        config = self.config if evaluation == self.config.in_evaluation else self._evaluation_config()
        settings = RolloutSettings.from_config(config, explore=config.explore if explore is None else explore)
        self._progress.begin(len(numbers))
        if self._questions is None:
            self._questions = QuestionLoop(self.engine, self._engine_thread, self._progress.update)
        self._questions.submit(numbers, self._env_pool(evaluation), settings, evaluation=evaluation)

    def _take(self, timeout_s: float | None) -> list[SampledQuestion]:
        if self._questions is None:
            return []
        try:
            sampled = self._questions.take(timeout_s)
        except Exception:
            self.drop_questions()
            raise
        if not self._questions.in_flight:
            self._progress.end()
        self.num_env_steps_sampled_lifetime += sum(s.stats.num_turns for s in sampled)
        self._call_back(sampled)
        return sampled

    def drop_questions(self) -> None:
        """Gives up the questions that are under way."""
        if self._questions is not None:
            self._questions.stop()
            self._questions = None
            self._progress.end()

    def _call_back(self, sampled: Sequence[SampledQuestion]) -> None:
        """RLlib's callbacks for finished episodes and for what is handed over at once."""
        for evaluation in {question.evaluation for question in sampled}:
            episodes = [question.episode for question in sampled if question.evaluation == evaluation]
            # What callbacks log of an evaluation on a training runner must not get among the training metrics.
            metrics = self.metrics if evaluation == self.config.in_evaluation else MetricsLogger()
            for index, episode in enumerate(episodes):
                self._make_callback(
                    "on_episode_end",
                    episode=episode,
                    env=self.env,
                    env_index=index % self.num_envs,
                    rl_module=None,
                    metrics_logger=metrics,
                )
            self._make_callback("on_sample_end", samples=episodes, metrics_logger=metrics)

    def _make_callback(self, name: str, **kwargs: Any) -> None:
        make_callback(
            name,
            callbacks_objects=self._callbacks,
            callbacks_functions=getattr(self.config, f"callbacks_{name}"),
            kwargs={"env_runner": self, "metrics_logger": self.metrics, **kwargs},
        )

    def _evaluation_config(self) -> ARPOConfig:
        return self.config.get_evaluation_config_object()

    def _env_pool(self, evaluation: bool) -> list[ForkableMultiAgentEnv]:
        if evaluation not in self._envs:
            self._envs[evaluation] = self._make_envs(self._evaluation_config())
        return self._envs[evaluation]

    def num_questions(self, *, evaluation: bool) -> int | None:
        """How many different questions the task has; None when they are generated without end."""
        return self._env_pool(evaluation)[0].num_questions

    @override(MultiAgentEnvRunner)
    def get_spaces(self) -> dict[str, tuple]:
        if self.env is None:
            return self.spaces
        spaces = (self.env.observation_space, self.env.action_space)
        return {INPUT_ENV_SPACES: spaces, INPUT_ENV_SINGLE_SPACES: spaces, DEFAULT_MODULE_ID: spaces}

    @override(MultiAgentEnvRunner)
    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """The weights are the learner's; the runner adds none of its own."""
        return {
            NUM_ENV_STEPS_SAMPLED_LIFETIME: self.num_env_steps_sampled_lifetime,
            WEIGHTS_SEQ_NO: self._weights_seq_no,
        }

    @override(MultiAgentEnvRunner)
    def set_state(self, state: dict[str, Any]) -> None:
        """Takes the counters. Weights come by `load_weights` alone, which is awaited and verified."""
        if NUM_ENV_STEPS_SAMPLED_LIFETIME in state:
            self.num_env_steps_sampled_lifetime = state[NUM_ENV_STEPS_SAMPLED_LIFETIME]

    def load_weights(self, snapshot: WeightSnapshot) -> LoadError | None:
        """Has the engine compute with these weights, which it verifies; running requests go on with them."""
        try:
            if self._merged_weights is not None:
                snapshot = replace(snapshot, weights=self._merged_weights(snapshot.weights))
            self._call_engine("wake_up")
            self._engine_thread.call(load_and_verify, self.engine, snapshot, self.config.dtype)
        except Exception as error:
            message = f"Env runner {self.worker_index} did not get the weights of version {snapshot.version}: "
            if isinstance(error, ValueError | WeightSyncError):
                return LoadError(f"{message}{error}", retry=False)
            logger.exception("%s", message)
            return LoadError(f"{message}{type(error).__name__}: {error}", retry=True)
        self._weights_seq_no = snapshot.version
        return None

    @cached_property
    def _merged_weights(self) -> MergedWeights | None:
        """Of a LoRA the learner sends the adapter alone."""
        if self.config.lora is None:
            return None
        from rllib_arpo.weights.lora import MergedWeights

        return MergedWeights(self.config.model_name_or_path, self.config.lora, self.config.dtype)

    def begin_transfer(self, shapes: dict[str, tuple[int, ...]]) -> str | None:
        """Gets the engine ready for weights that come by vLLM's weight transfer; an error as in `load_weights`."""
        return self._attempt("cannot take weights", [("wake_up",), ("begin_transfer", shapes)])

    def transfer_weights(self, method: str, arguments: dict[str, Any]) -> str | None:
        """One step of the transfer, asked for by the learner; `load_weights` ends it."""
        return self._attempt(f"failed in {method}", [("transfer_weights", method, arguments)])

    def sleep(self, level: int) -> str | None:
        """Gives the engine's GPU memory to the learner, until `load_weights` brings new ones; returns an error."""
        return self._attempt("cannot sleep", [("sleep", level)])

    def _attempt(self, failure: str, calls: Sequence[tuple]) -> str | None:
        """Calls methods of the engine in turn; an error is logged here and told in one sentence there."""
        try:
            for method, *args in calls:
                self._call_engine(method, *args)
        except Exception as error:
            logger.exception("Env runner %s %s.", self.worker_index, failure)
            return f"Env runner {self.worker_index} {failure}: {type(error).__name__}: {error}"
        return None

    def weight_version(self) -> int:
        """The version of the engine's weights; negative before the first `load_weights` (`Engine.weight_version`)."""
        return self.engine.weight_version

    def score(self, token_ids: list[int], temperature: float = 1.0) -> np.ndarray:
        """The engine's log-probs [n - 1] of token_ids[1:]; for checks."""
        return self._call_engine("score", token_ids, temperature)

    def _call_engine(self, method: str, *args: Any) -> Any:
        return self._engine_thread.call(getattr(self.engine, method), *args)

    @override(MultiAgentEnvRunner)
    def get_metrics(self) -> dict[str, Any]:
        return self.metrics.reduce()

    @override(MultiAgentEnvRunner)
    def assert_healthy(self) -> None:
        assert self.env is not None
        assert self.engine is not None

    @override(MultiAgentEnvRunner)
    def stop(self) -> None:
        self.drop_questions()
        for env in itertools.chain.from_iterable(self._envs.values()):
            env.close()
        if self.env is not None:
            try:
                self._engine_thread.call(self.engine.close, timeout_s=CLOSE_TIMEOUT_S)
            except TimeoutError:
                logger.warning("Env runner %s leaves an engine behind that hangs.", self.worker_index)
        self._engine_thread.shutdown()
