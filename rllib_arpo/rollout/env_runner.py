"""`ARPOEnvRunner`: owns an inference engine and a pool of environments, and keeps many questions in flight."""

from __future__ import annotations

import asyncio
import itertools
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME, WEIGHTS_SEQ_NO

from rllib_arpo.engine import make_engine
from rllib_arpo.engine.engine import Engine, EngineConfig
from rllib_arpo.envs.forkable_env import ForkableMultiAgentEnv
from rllib_arpo.logging.progress import RolloutProgress
from rllib_arpo.rollout.make_env import make_env
from rllib_arpo.rollout.metrics import rollout_metrics
from rllib_arpo.rollout.questions import Rollout, RolloutError, SampledQuestion, run_rollout
from rllib_arpo.rollout.settings import RolloutSettings

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: Key of `set_state`'s state: load the weights even if the engine has their version. Two checkpoints may share one.
FORCE_WEIGHTS = "force_weights"


class ARPOEnvRunner(MultiAgentEnvRunner):
    """Samples whole questions, each as one `MultiAgentEpisode` with one agent per trajectory.

    The policy is an inference engine, not an RLModule: `module` is None and `set_state` hands the learner's weights
    to the engine. One thread owns the engine; the event loop of `sample` runs the environments and tools meanwhile.
    `num_envs_per_env_runner` questions are in flight at a time.
    """

    @override(MultiAgentEnvRunner)
    def __init__(self, config: ARPOConfig, **kwargs: Any):
        self._engine_thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        # Only for RLlib's own `sample()`: the env runners share the questions out among themselves.
        first, stride = max(kwargs.get("worker_index") or 0, 1) - 1, max(config.num_env_runners, 1)
        self._own_questions: Iterator[int] = itertools.count(first, stride)
        self._envs: dict[bool, list[ForkableMultiAgentEnv]] = {}
        super().__init__(config=config, **kwargs)

    @override(MultiAgentEnvRunner)
    def make_env(self) -> None:
        """Makes the pool of training environments (a dedicated evaluation runner: of its own configuration)."""
        self._envs[self.config.in_evaluation] = self._make_envs(self.config)
        self.env = self._envs[self.config.in_evaluation][0]
        self.num_envs = len(self._envs[self.config.in_evaluation])
        self._make_callback("on_environment_created", env=self.env, env_context=EnvContext(self.config.env_config, 0))

    def _make_envs(self, config: ARPOConfig) -> list[ForkableMultiAgentEnv]:
        envs = [make_env(config, self.worker_index or 0) for _ in range(config.num_envs_per_env_runner)]
        if not isinstance(envs[0], ForkableMultiAgentEnv):
            raise ValueError(f"env={config.env!r} is a {type(envs[0]).__name__}, not a ForkableMultiAgentEnv.")
        return envs

    @override(MultiAgentEnvRunner)
    def make_module(self) -> None:
        """Starts the engine in the thread that will own it."""
        self.module = None
        if self.env is not None:
            self.engine: Engine = self._engine_thread.submit(make_engine, *self._engine_args()).result()

    def _engine_args(self) -> tuple[str, EngineConfig]:
        config = self.config
        return config.engine, EngineConfig(
            model_name_or_path=config.model_name_or_path,
            dtype=config.dtype,
            max_context_tokens=config.max_context_tokens,
            num_threads=config.engine_num_threads,
            seed=(config.seed or 0) + (self.worker_index or 0),
            engine_kwargs=dict(config.engine_kwargs),
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

    def rollout(
        self, numbers: Sequence[int], *, evaluation: bool = False, weight_version: int | None = None
    ) -> Rollout | RolloutError:
        """What the driver calls: `sample_questions`, with an error as a value.

        RLlib lets an env runner exit on any exception, after which nobody knows the cause.
        """
        try:
            questions = self.sample_questions(numbers, evaluation=evaluation, weight_version=weight_version)
        except Exception as error:
            # A ValueError is bad data or a bug in the environment: the same questions would raise it again.
            name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            return RolloutError(f"{name}{error}", traceback.format_exc(), retry=not isinstance(error, ValueError))
        return Rollout(questions, self.metrics.reduce())

    def sample_questions(
        self,
        numbers: Sequence[int],
        *,
        explore: bool | None = None,
        evaluation: bool = False,
        weight_version: int | None = None,
    ) -> list[SampledQuestion]:
        """Samples the questions with these numbers, in this order, many at a time.

        Args:
            numbers: of the task's questions.
            explore: False decodes one greedy trajectory per question; None takes the configuration's word.
            evaluation: whether to use the environments and settings of the evaluation configuration.
            weight_version: the version that the engine must have.

        Raises:
            RuntimeError: the engine has other weights.
        """
        if weight_version is not None and self.engine.weight_version != weight_version:
            raise RuntimeError(
                f"Env runner {self.worker_index} has weights {self.engine.weight_version}, not {weight_version}."
            )
        config = self.config if evaluation == self.config.in_evaluation else self._evaluation_config()
        settings = RolloutSettings.from_config(config, explore=config.explore if explore is None else explore)
        envs = self._env_pool(evaluation)
        label = f"rollout {self.worker_index}" if self.worker_index else "rollout"
        with RolloutProgress(len(numbers), label, enabled=self.config.progress_bar) as progress:
            coroutine = run_rollout(numbers, envs, self.engine, self._engine_thread, settings, progress.update)
            # In a thread of its own: a notebook has an event loop in this one.
            with ThreadPoolExecutor(1, thread_name_prefix="rollout") as thread:
                sampled = thread.submit(asyncio.run, coroutine).result()
        self.num_env_steps_sampled_lifetime += sum(s.stats.num_turns for s in sampled)
        self._call_back(sampled)
        return sampled

    def _call_back(self, sampled: Sequence[SampledQuestion]) -> None:
        """RLlib's callbacks for finished episodes and for the whole sample."""
        for index, question in enumerate(sampled):
            self._make_callback(
                "on_episode_end",
                episode=question.episode,
                env=self.env,
                env_index=index % self.num_envs,
                rl_module=None,
            )
        self._make_callback("on_sample_end", samples=[question.episode for question in sampled])

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
        """Loads the weights in `state`, if any, into the engine, unless it has that version already."""
        if NUM_ENV_STEPS_SAMPLED_LIFETIME in state:
            self.num_env_steps_sampled_lifetime = state[NUM_ENV_STEPS_SAMPLED_LIFETIME]
        if COMPONENT_RL_MODULE not in state or self.env is None:
            return
        weights = state[COMPONENT_RL_MODULE]
        if isinstance(weights, ray.ObjectRef):
            weights = ray.get(weights)
        version = int(state.get(WEIGHTS_SEQ_NO, 0))
        if version != self.engine.weight_version or state.get(FORCE_WEIGHTS):
            self._call_engine("update_weights", weights[DEFAULT_MODULE_ID].items(), version)
        self._weights_seq_no = version

    def weight_version(self) -> int:
        """The version of the engine's weights; -1 before the first `set_state`."""
        return self.engine.weight_version

    def score(self, token_ids: list[int], temperature: float = 1.0) -> np.ndarray:
        """The engine's log-probs [n - 1] of token_ids[1:]; for checks."""
        return self._call_engine("score", token_ids, temperature)

    def _call_engine(self, method: str, *args: Any) -> Any:
        return self._engine_thread.submit(getattr(self.engine, method), *args).result()

    @override(MultiAgentEnvRunner)
    def get_metrics(self) -> dict[str, Any]:
        return self.metrics.reduce()

    @override(MultiAgentEnvRunner)
    def assert_healthy(self) -> None:
        assert self.env is not None
        assert self.engine is not None

    @override(MultiAgentEnvRunner)
    def stop(self) -> None:
        for env in itertools.chain.from_iterable(self._envs.values()):
            env.close()
        if self.env is not None:
            self._call_engine("close")
        self._engine_thread.shutdown()
