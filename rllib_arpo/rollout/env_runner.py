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

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME, WEIGHTS_SEQ_NO
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_arpo.core.figures import num_turns
from rllib_arpo.engine import make_engine
from rllib_arpo.engine.engine import Engine, EngineConfig
from rllib_arpo.engine.engine_thread import EngineThread
from rllib_arpo.engine.scripted_engine import ScriptedEngine
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.forkable_env import ForkableMultiAgentEnv
from rllib_arpo.faults import Failure
from rllib_arpo.policy.checkpoint_names import causal_lm_config
from rllib_arpo.rollout.callbacks import RunnerCallbacks
from rllib_arpo.rollout.make_env import env_context, make_env
from rllib_arpo.rollout.messages import (
    FailedQuestion,
    Purpose,
    QuestionRef,
    RunnerAnswer,
    SampledQuestion,
    SamplingConditions,
    question_refs,
)
from rllib_arpo.rollout.metric_table import rollout_metrics
from rllib_arpo.rollout.progress import RolloutProgress
from rllib_arpo.rollout.question_loop import QuestionLoop
from rllib_arpo.rollout.settings import RolloutSettings
from rllib_arpo.weights import transfer_backend
from rllib_arpo.weights.snapshot import WeightSnapshot, WeightSyncError, load_and_verify
from rllib_arpo.weights.transports import shares_gpu

if TYPE_CHECKING:
    from rllib_arpo.policy.lora import MergedWeights


logger = logging.getLogger("rllib_arpo")

#: Seconds that an engine may take to close.
CLOSE_TIMEOUT_S = 60.0


class ARPOEnvRunner(MultiAgentEnvRunner):
    """Samples whole questions, each as one `MultiAgentEpisode` with one agent per trajectory.

    The policy is an inference engine, not an RLModule: `module` is None, and `load_weights` gives the learner's weights
    to the engine. One thread owns the engine, another runs the event loop of environments and tools (`QuestionLoop`).
    The env runner works on `num_envs_per_env_runner` questions at a time.
    """

    @override(MultiAgentEnvRunner)
    def __init__(self, config: AlgorithmConfig, **kwargs: Any):
        self._engine_thread = EngineThread()
        # Only for RLlib's own `sample()`: each env runner takes every n-th question.
        first, stride = max(kwargs.get("worker_index") or 0, 1) - 1, max(config.num_env_runners, 1)
        self._own_questions: Iterator[int] = itertools.count(first, stride)
        self._sample_metrics: dict[str, float] = {}
        self._envs: dict[Purpose, list[ForkableMultiAgentEnv]] = {}
        #: All pools, to be closed; also one that could not be completed.
        self._pools: list[list[ForkableMultiAgentEnv]] = []
        self._questions: QuestionLoop | None = None
        self._transfer_group = ""
        self._progress = RolloutProgress("rollout", config.show_progress)
        try:
            super().__init__(config=config, **kwargs)
        except BaseException:
            self.stop()  # Nobody else can: RLlib has no env runner yet.
            raise

    @override(MultiAgentEnvRunner)
    def make_env(self) -> None:
        """Makes the pool of training environments (an evaluation runner uses its own configuration)."""
        self._user_callbacks = RunnerCallbacks(self, self.own_purpose)
        envs = self._envs[self.own_purpose] = self._make_envs(self.own_purpose)
        self.env, self.num_envs = envs[0], len(envs)

    def _make_envs(self, purpose: Purpose) -> list[ForkableMultiAgentEnv]:
        config = self._config_of(purpose)
        make = partial(make_env, config, self.worker_index or 0)
        first = make()
        if not isinstance(first, ForkableMultiAgentEnv):
            raise ValueError(f"env={config.env!r} is a {type(first).__name__}, not a ForkableMultiAgentEnv.")
        for name in ("stop", "tool_names"):
            if isinstance(texts := getattr(first, name), str):
                raise ValueError(f"env={config.env!r}: {name}={texts!r} must be a tuple of texts.")
        envs = [first]
        self._pools.append(envs)
        for index in range(1, config.num_envs_per_env_runner):
            envs.append(first.another() or make(index))
        for index, env in enumerate(envs):
            self._user_callbacks.environment_created(env, env_context(config, self.worker_index or 0, index), purpose)
        return envs

    @override(MultiAgentEnvRunner)
    def make_module(self) -> None:
        """Starts the engine in the thread that will own it."""
        self.module = None
        self.engine: Engine = self._engine_thread.call(make_engine, *self._engine_args(), timeout_s=None)
        if isinstance(self.engine, ScriptedEngine):
            self.engine.play(self.env)

    def _engine_args(self) -> tuple[str, EngineConfig]:
        config = self.config
        return config.engine, EngineConfig(
            model_name_or_path=config.model_name_or_path,
            dtype=config.dtype,
            max_context_tokens=config.max_context_tokens,
            num_threads=config.engine_num_threads,
            seed=((config.seed or 0) + (self.worker_index or 0)) % 2**32,  # NumPy takes no larger one.
            engine_kwargs=dict(config.engine_kwargs),
            can_sleep=config.sleep_level > 0,
            weight_transfer=transfer_backend(config.weight_sync),
            shares_gpu=shares_gpu(config),
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
        sampled = self.sample_questions(question_refs(numbers, self.own_purpose), explore=explore)
        self._sample_metrics = rollout_metrics(sampled, time.perf_counter() - start)
        return [question.episode for question in sampled]

    def exchange(
        self,
        refs: Sequence[QuestionRef],
        conditions: SamplingConditions,
        timeout_s: float,
    ) -> RunnerAnswer | Failure:
        """Takes new questions from the driver and returns the questions that have ended since the last call.

        Sampling goes on in the background, even while the engine gets new weights. Errors are returned as values, since
        RLlib ends an env runner on any exception and the cause would be lost.

        Args:
            refs: new questions; each is sampled with the environments and settings of its purpose.
            conditions: for the new questions.
            timeout_s: how long to wait while no question has ended.
        """
        try:
            self._submit(refs, conditions)
            sampled, failed = self._take(timeout_s)
            in_flight = frozenset(self._questions.in_flight if self._questions else ())
            metrics = self._user_callbacks.take_metrics({question.ref.purpose for question in sampled})
            return RunnerAnswer(sampled, in_flight, metrics, failed)
        except DataError as error:
            return Failure(str(error), retry=False, traceback=traceback.format_exc())
        except Exception as error:
            return Failure(f"{type(error).__name__}: {error}", retry=True, traceback=traceback.format_exc())

    def sample_questions(
        self,
        refs: Sequence[QuestionRef],
        conditions: SamplingConditions = SamplingConditions(),  # noqa: B008 (it is frozen)
        *,
        explore: bool | None = None,
    ) -> list[SampledQuestion]:
        """Samples these distinct questions, many at a time; returns them in this order.

        Args:
            explore: False decodes one greedy trajectory per question; None follows the configuration.

        Raises:
            RuntimeError: the engine has other weights, questions of `exchange` are in flight, or a question failed.
        """
        if self._questions is not None and self._questions.in_flight:
            raise RuntimeError(f"Env runner {self.worker_index} has {len(self._questions.in_flight)} open questions.")
        self._submit(refs, conditions, explore=explore)
        sampled: dict[QuestionRef, SampledQuestion] = {}
        while len(sampled) < len(refs):
            ended, failed = self._take(None)
            if failed:
                self.drop_questions()
                raise RuntimeError(f"{failed[0].ref} failed: {failed[0].failure.message}")
            sampled |= {question.ref: question for question in ended}
        return [sampled[ref] for ref in refs]

    def _submit(
        self,
        refs: Sequence[QuestionRef],
        conditions: SamplingConditions,
        *,
        explore: bool | None = None,
    ) -> None:
        if not refs:
            return
        if conditions.weight_version not in (None, self.engine.weight_version):
            raise RuntimeError(
                f"Env runner {self.worker_index} has weights {self.engine.weight_version}, "
                f"not {conditions.weight_version}."
            )
        what = "evaluation" if refs[0].purpose == Purpose.EVALUATION else "rollout"
        label = f"{what} {self.worker_index}" if self.worker_index else what
        self._progress.begin(len(refs), label, self.engine.weight_version)
        if self._questions is None:
            self._questions = QuestionLoop(
                self.engine,
                self._engine_thread,
                self._progress.update,
                self._user_callbacks.episode_ended,
                causal_lm_config(self.config.model_name_or_path).get_text_config().vocab_size,
            )
        for purpose in dict.fromkeys(ref.purpose for ref in refs):
            config = self._config_of(purpose)
            settings = RolloutSettings.from_config(
                config,
                explore=config.explore if explore is None else explore,
                rollout_reference=conditions.rollout_reference,
            )
            same = [ref for ref in refs if ref.purpose == purpose]
            self._questions.submit(same, self._env_pool(purpose), settings)

    def _take(self, timeout_s: float | None) -> tuple[list[SampledQuestion], list[FailedQuestion]]:
        """The questions that have ended or failed since the last call."""
        if self._questions is None:
            return [], []
        try:
            ended = self._questions.take(timeout_s)
        except Exception:
            self.drop_questions()
            raise
        sampled = [question for question in ended if isinstance(question, SampledQuestion)]
        failed = [question for question in ended if isinstance(question, FailedQuestion)]
        if not self._questions.in_flight:
            self._progress.end()
        self.num_env_steps_sampled_lifetime += sum(num_turns(s.tree) for s in sampled)
        self._user_callbacks.sampled(sampled)
        return sampled, failed

    def drop_questions(self) -> None:
        """Drops the questions in flight."""
        if self._questions is not None:
            self._questions.stop()
            self._questions = None
            self._progress.end()

    @property
    def own_purpose(self) -> Purpose:
        return Purpose.EVALUATION if self.config.in_evaluation else Purpose.TRAINING

    def _config_of(self, purpose: Purpose) -> AlgorithmConfig:
        """The configuration for a purpose; a runner of an evaluation group has only the evaluation configuration."""
        if purpose == Purpose.EVALUATION and not self.config.in_evaluation:
            return self.config.get_evaluation_config_object()
        return self.config

    def _env_pool(self, purpose: Purpose) -> list[ForkableMultiAgentEnv]:
        if purpose not in self._envs:
            self._envs[purpose] = self._make_envs(purpose)
        return self._envs[purpose]

    def num_questions(self, purpose: Purpose) -> int | Failure | None:
        """The number of different questions of the task; None if it generates them without end.

        The first call may make the environments of evaluation; errors are returned as values, as in `exchange`.
        """
        try:
            return self._env_pool(purpose)[0].num_questions
        except DataError as error:
            return Failure(str(error), retry=False, traceback=traceback.format_exc())
        except Exception as error:
            return Failure(f"{type(error).__name__}: {error}", retry=True, traceback=traceback.format_exc())

    @override(MultiAgentEnvRunner)
    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        spaces = (self.env.observation_space, self.env.action_space)
        return {INPUT_ENV_SPACES: spaces, INPUT_ENV_SINGLE_SPACES: spaces, DEFAULT_MODULE_ID: spaces}

    @override(MultiAgentEnvRunner)
    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """The runner's state without weights, since the weights belong to the learner."""
        return {
            NUM_ENV_STEPS_SAMPLED_LIFETIME: self.num_env_steps_sampled_lifetime,
            WEIGHTS_SEQ_NO: self._weights_seq_no,
        }

    @override(MultiAgentEnvRunner)
    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the counters. Weights come only through `load_weights`, which verifies them."""
        if NUM_ENV_STEPS_SAMPLED_LIFETIME in state:
            self.num_env_steps_sampled_lifetime = state[NUM_ENV_STEPS_SAMPLED_LIFETIME]

    def load_weights(self, snapshot: WeightSnapshot, timeout_s: float) -> Failure | None:
        """Gives the engine these weights and verifies them; running requests wait, and continue with them.

        Args:
            timeout_s: seconds after which the engine counts as hung.
        """
        try:
            snapshot = snapshot.received()
            if self._merged_weights is not None and isinstance(snapshot.weights, dict):
                snapshot = replace(snapshot, weights=self._merged_weights(snapshot.weights))
            self._call_engine("wake_up")
            arguments = self.engine, snapshot, self.config.dtype
            self._engine_thread.call(load_and_verify, *arguments, timeout_s=timeout_s)
        except Exception as error:
            message = f"Env runner {self.worker_index} did not get the weights of version {snapshot.version}: "
            if isinstance(error, ValueError | WeightSyncError):
                return Failure(f"{message}{error}", retry=False)
            logger.exception("%s", message)
            return Failure(f"{message}{type(error).__name__}: {error}", retry=True)
        self._weights_seq_no = snapshot.version
        return None

    @cached_property
    def _merged_weights(self) -> MergedWeights | None:
        """Makes whole weights from a LoRA's adapter, which is all that the learner sends; None without LoRA."""
        if self.config.lora is None:
            return None
        from rllib_arpo.policy.lora import MergedWeights

        return MergedWeights(self.config.model_name_or_path, self.config.lora, self.config.dtype)

    def begin_transfer(self, shapes: dict[str, tuple[int, ...]]) -> Failure | str:
        """Prepares the engine for weights that come by vLLM's weight transfer (`load_weights`).

        Returns:
            the name of the group that the engine has joined, or ""; errors like `load_weights`.
        """
        return self._attempt("cannot take weights", [("wake_up",), ("check_weights", shapes)]) or self._transfer_group

    def join_transfer(self, group: str, init_info: dict[str, Any]) -> Failure | None:
        """Connects the engine with the learner, for any number of transfers to the group of this name."""
        self._transfer_group = ""
        failure = self._attempt("cannot join the learner", [("join_transfer", init_info)])
        if failure is None:
            self._transfer_group = group
        return failure

    def sleep(self, level: int) -> Failure | None:
        """Gives the engine's GPU memory to the learner, until `load_weights` brings new weights."""
        return self._attempt("cannot sleep", [("sleep", level)])

    def _attempt(self, failure: str, calls: Sequence[tuple[Any, ...]]) -> Failure | None:
        """Calls methods of the engine in turn; logs an error here, and returns it to the driver as one sentence.

        A new engine may do better, unless it is a ValueError: the arguments are wrong.
        """
        try:
            for method, *args in calls:
                self._call_engine(method, *args)
        except Exception as error:
            logger.exception("Env runner %s %s.", self.worker_index, failure)
            message = f"Env runner {self.worker_index} {failure}: {type(error).__name__}: {error}"
            return Failure(message, retry=not isinstance(error, ValueError))
        return None

    def weight_version(self) -> int:
        """The version of the engine's weights; negative before the first `load_weights` (`Engine.weight_version`)."""
        return self.engine.weight_version

    def _call_engine(self, method: str, *args: Any) -> Any:
        return self._engine_thread.call(getattr(self.engine, method), *args)

    @override(MultiAgentEnvRunner)
    def get_metrics(self) -> dict[str, Any]:
        """The metrics of callbacks and of the last `sample()`; `exchange` itself sends metrics of callbacks."""
        own = MetricsLogger()
        for name, value in self._sample_metrics.items():
            own.log_value(tuple(name.split("/")), value, window=1)
        self._sample_metrics = {}
        return self.metrics.reduce() | own.reduce()

    @override(MultiAgentEnvRunner)
    def assert_healthy(self) -> None:
        assert self.env is not None
        assert self.engine is not None

    @override(MultiAgentEnvRunner)
    def stop(self) -> None:
        self.drop_questions()
        for env in itertools.chain.from_iterable(self._pools):
            try:
                env.close()
            except Exception as error:  # The engine must be closed in any case.
                logger.warning("%s of env runner %s did not close (%r).", type(env).__name__, self.worker_index, error)
        self._pools.clear()
        # Only once: after its shutdown the thread answers no calls.
        try:
            if (engine := self.__dict__.pop("engine", None)) is not None:
                self._engine_thread.call(engine.close, timeout_s=CLOSE_TIMEOUT_S)
        except TimeoutError:
            logger.warning("Env runner %s leaves a hung engine behind.", self.worker_index)
        finally:
            self._engine_thread.shutdown()
