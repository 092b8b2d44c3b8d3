"""`ARPO`: Agentic Reinforced Policy Optimization (arXiv 2507.19849) as an RLlib algorithm."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    TIMERS,
)

from rllib_arpo import validation
from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.learner.gradients import NonFiniteLossError
from rllib_arpo.learner.guards import GUARD_LIMITS, alarms
from rllib_arpo.logging.failed_questions import save_failed_questions
from rllib_arpo.logging.trial_folder import trial_folder
from rllib_arpo.rollout.dispatch import QuestionDispatcher
from rllib_arpo.rollout.metrics import nested, rollout_metrics
from rllib_arpo.weights import make_weight_sync

if TYPE_CHECKING:
    from pathlib import Path

    from ray.rllib.env.env_runner_group import EnvRunnerGroup
    from ray.tune.execution.placement_groups import PlacementGroupFactory

    from rllib_arpo.rollout.questions import SampledQuestion
    from rllib_arpo.weights import WeightSync

logger = logging.getLogger("rllib_arpo")

#: Under `timers/` in the result: where an iteration's seconds went.
ROLLOUT_TIMER, UPDATE_TIMER, SYNC_TIMER = "rollout", "update", "sync"
#: Seconds within which engines must fall asleep.
SLEEP_TIMEOUT_S = 600.0
#: Key of the algorithm's state: the number of the first question that has not been asked yet.
NEXT_QUESTION = "next_question"
#: Under `learners/default_policy/`: how many guards (`learner/guards.py`) have crossed their limits.
NUM_ALARMS = "num_alarms"


class ARPO(Algorithm):
    """Samples a tree of trajectories per question, updates the policy with it, pushes the new weights."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> ARPOConfig:
        return ARPOConfig()

    @classmethod
    @override(Algorithm)
    def default_resource_request(cls, config: AlgorithmConfig | dict) -> PlacementGroupFactory:
        factory = super().default_resource_request(config)
        validation.check_cluster_resources(factory.bundles)
        return factory

    @override(Algorithm)
    def setup(self, config: ARPOConfig) -> None:
        self._next_question = self._asked_until = self._num_requeued = 0
        self.last_evaluation: list[SampledQuestion] = []
        self._alarms: set[str] = set()
        super().setup(config)
        self._push_weights()
        self._sampled_at = time.perf_counter()

    # Made when they are first asked for: callbacks may evaluate while the algorithm is still being set up.
    @cached_property
    def _dispatcher(self) -> QuestionDispatcher:
        return self._make_dispatcher(self.env_runner_group, self.config)

    @cached_property
    def _evaluation_dispatcher(self) -> QuestionDispatcher:
        if self.eval_env_runner_group is None:
            return self._dispatcher
        return self._make_dispatcher(self.eval_env_runner_group, self.evaluation_config)

    @cached_property
    def _weight_sync(self) -> WeightSync:
        return make_weight_sync(self.config.weight_sync, self.learner_group)

    def _make_dispatcher(self, group: EnvRunnerGroup, config: ARPOConfig) -> QuestionDispatcher:
        restore = partial(self.restore_env_runners, group)
        return QuestionDispatcher(group, config, self.evaluation_config, restore)

    @override(Algorithm)
    def training_step(self) -> None:
        """One iteration: sample the next questions, update on their trees, hand the new weights to the engines."""
        with self.metrics.log_time((TIMERS, ROLLOUT_TIMER), reduce="mean", window=1):
            batch = self._sample_batch()
        with self.metrics.log_time((TIMERS, UPDATE_TIMER), reduce="mean", window=1):
            self._sleep_engines()
            self._update(batch)
        with self.metrics.log_time((TIMERS, SYNC_TIMER), reduce="mean", window=1):
            self._push_weights()

    def _sample_batch(self) -> list[SampledQuestion]:
        """The next `questions_per_batch` questions; DAPO replaces those whose rewards are all equal by new ones.

        With `max_weight_lag` the batches after this one are under way already, and go on during the update. Questions
        are taken in their order, however long they last: the quick ones have no advantage.
        """
        config = self.config
        start = self._sampled_at if config.max_weight_lag else time.perf_counter()
        self._ask_until(self._next_question + (1 + config.max_weight_lag) * config.questions_per_batch)
        batch = self._take_next(config.questions_per_batch)
        asked = list(batch)
        rounds = 0
        while rounds < config.max_resample_rounds and not all(s.stats.has_signal for s in batch):
            batch = [s for s in batch if s.stats.has_signal]
            fresh = self._take_next(config.questions_per_batch - len(batch))
            batch, asked, rounds = batch + fresh, asked + fresh, rounds + 1
        self._sampled_at = time.perf_counter()
        metrics = rollout_metrics([s.stats for s in asked], self._sampled_at - start)
        self._log_rollout(asked, metrics | {"resample_rounds": rounds} | self._lag_metrics(asked))
        return batch

    def _ask_until(self, stop: int) -> None:
        """Sees to it that all questions before number `stop` have been asked."""
        if stop > self._asked_until:
            self._dispatcher.ask(range(self._asked_until, stop))
            self._asked_until = stop

    def _take_next(self, num_questions: int) -> list[SampledQuestion]:
        numbers = range(self._next_question, self._next_question + num_questions)
        self._ask_until(numbers.stop)
        sampled = self._collect(numbers)
        while too_old := [s.number for s in sampled if self._lag(s) > self.config.max_weight_lag]:
            self._num_requeued += len(too_old)
            self._dispatcher.ask(too_old)
            fresh = {s.number: s for s in self._collect(too_old)}
            sampled = [fresh.get(s.number, s) for s in sampled]
        self._next_question = numbers.stop
        return sampled

    def _collect(self, numbers: Sequence[int]) -> list[SampledQuestion]:
        sampled = self._dispatcher.collect(numbers, weight_version=self._weight_version)
        for metrics in self._dispatcher.take_metrics():
            self.metrics.aggregate([metrics], key=ENV_RUNNER_RESULTS)
        return sampled

    def _lag(self, question: SampledQuestion) -> int:
        """How many updates the oldest weights that sampled a question are behind the learner's."""
        oldest = question.stats.oldest_weights
        return 0 if oldest is None else self._weight_version - oldest

    def _lag_metrics(self, sampled: Sequence[SampledQuestion]) -> dict[str, float]:
        requeued, self._num_requeued = self._num_requeued, 0
        return {"weight_lag_max": max(self._lag(s) for s in sampled), "questions_requeued": requeued}

    def _log_rollout(self, sampled: Sequence[SampledQuestion], metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self.metrics.log_value((ENV_RUNNER_RESULTS, *name.split("/")), value, reduce="mean", window=1)
        turns = sum(s.stats.num_turns for s in sampled)
        for key, lifetime_key, value in (
            (NUM_ENV_STEPS_SAMPLED, NUM_ENV_STEPS_SAMPLED_LIFETIME, turns),
            (NUM_EPISODES, NUM_EPISODES_LIFETIME, len(sampled)),
        ):
            self.metrics.log_value((ENV_RUNNER_RESULTS, key), value, reduce="sum")
            self.metrics.log_value((ENV_RUNNER_RESULTS, lifetime_key), value, reduce="lifetime_sum")

    def _update(self, batch: Sequence[SampledQuestion]) -> None:
        from rllib_arpo.learner.training_data import QuestionBatch

        turns = self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0)
        episodes = [s.episode for s in batch]
        try:
            results = self.learner_group.update(
                training_data=QuestionBatch.from_config(episodes, self.config, seed=self._weight_version),
                timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: turns},
            )
        except NonFiniteLossError as error:
            path = save_failed_questions(trial_folder(self), episodes, error.question_ids)
            error.add_note(f"The questions are in {path}.")
            raise
        self.metrics.aggregate(results, key=LEARNER_RESULTS)
        self._raise_alarms()
        if self.config.sleep_level:
            # What torch keeps for the next update the engines need now.
            self.learner_group.foreach_learner(lambda _learner, **_kwargs: torch.cuda.empty_cache())

    def _raise_alarms(self) -> None:
        """Warns when a metric of the learner crosses its guard's limit, once until it is back within."""
        learner = (LEARNER_RESULTS, DEFAULT_MODULE_ID)
        # A batch without a token to train on has no means; to `peek`, a default of None is none.
        metrics = {name: self.metrics.peek((*learner, name), default=math.nan) for name in GUARD_LIMITS}
        found = alarms({name: value for name, value in metrics.items() if not math.isnan(value)}, self.config.guards)
        for name in found.keys() - self._alarms:
            logger.warning("%s", found[name])
        self._alarms = set(found)
        self.metrics.log_value((*learner, NUM_ALARMS), len(found), window=1)

    def _sleep_engines(self) -> None:
        """Frees what the engines hold of a GPU that the learner shares; the next weights wake them."""
        level = self.config.sleep_level
        if not level:
            return
        for group in filter(None, (self.env_runner_group, self.eval_env_runner_group)):
            errors = group.foreach_env_runner(
                lambda runner: runner.sleep(level),
                local_env_runner=group.num_remote_env_runners() == 0,
                timeout_seconds=SLEEP_TIMEOUT_S,
            )
            if found := [error for error in errors if error is not None]:
                raise RuntimeError(" ".join(found))

    def _push_weights(
        self, group: EnvRunnerGroup | None = None, runners: list[int] | None = None, *, force: bool = False
    ) -> None:
        """Hands the learner's weights to the engines of `group` and waits until they have them.

        RLlib's own `sync_weights` is fire-and-forget and drops a second request in silence. An engine that did not
        get the weights refuses to sample (`exchange(weight_version=...)`).
        """
        self._weight_version = self._weight_sync.push(group or self.env_runner_group, runners, force=force)

    @override(Algorithm)
    def restore_env_runners(self, env_runner_group: EnvRunnerGroup) -> list[int]:
        """Brings restarted env runners back into service, with the learner's weights in their engines."""
        restored = env_runner_group.probe_unhealthy_env_runners()
        if restored:
            self._counters["total_num_restored_workers"] += len(restored)
            self._push_weights(env_runner_group, restored)
        return restored

    @classmethod
    @override(Algorithm)
    def _should_create_evaluation_env_runners(cls, eval_config: AlgorithmConfig) -> bool:
        """Without evaluation env runners of its own, evaluation runs on the training runners' engines."""
        return eval_config.evaluation_num_env_runners > 0

    @override(Algorithm)
    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Answers the first `evaluation_duration` held-out questions with the learner's current weights.

        The trees are kept in `last_evaluation`.

        Returns:
            {"env_runners": the metrics of the rollout, nested}; RLlib puts it under "evaluation" into the result.
        """
        self._make_callback("on_evaluate_start")
        group = self.eval_env_runner_group or self.env_runner_group
        self._push_weights(group)
        start = time.perf_counter()
        numbers = range(self._num_evaluation_questions(group))
        self._evaluation_dispatcher.ask(numbers, evaluation=True)
        try:
            self.last_evaluation = self._evaluation_dispatcher.collect(
                numbers, weight_version=self._weight_version, evaluation=True
            )
        except BaseException:
            # The next evaluation must not find answers of this one.
            self._drop_questions()
            raise
        if self.eval_env_runner_group is not None:
            self._evaluation_dispatcher.take_metrics()  # Callbacks' metrics of evaluation env runners are not kept.
        metrics = rollout_metrics([s.stats for s in self.last_evaluation], time.perf_counter() - start)
        # Not through `self.metrics`: what is logged there would turn up again in the next iterations' results.
        results = {ENV_RUNNER_RESULTS: nested(metrics | {NUM_EPISODES: len(self.last_evaluation)})}
        self._make_callback("on_evaluate_end", evaluation_metrics=results)
        return results

    def _make_callback(self, name: str, **kwargs: Any) -> None:
        make_callback(
            name,
            callbacks_objects=self.callbacks,
            callbacks_functions=getattr(self.config, f"callbacks_{name}"),
            kwargs={"algorithm": self, "metrics_logger": self.metrics, **kwargs},
        )

    def _num_evaluation_questions(self, group: EnvRunnerGroup) -> int:
        """`evaluation_duration`, or all held-out questions when there are fewer."""
        available = group.foreach_env_runner(
            lambda runner: runner.num_questions(evaluation=True),
            local_env_runner=group.num_remote_env_runners() == 0,
        )
        return min([self.config.evaluation_duration, *(n for n in available if n is not None)])

    def save_model(self, folder: str | Path, dtype: str | None = None) -> None:
        """Writes the model as trained so far for Hugging Face's `from_pretrained`, a LoRA merged into its base.

        `rllib_arpo.export` makes the same of a checkpoint.

        Args:
            folder: on the driver's machine; gets safetensors, configuration and tokenizer.
            dtype: of the weights in it ("bfloat16"); None: as trained, float32.
        """
        from rllib_arpo.weights.huggingface import write_model
        from rllib_arpo.weights.lora import MergedWeights

        config = self.config
        state = self.learner_group.get_state(components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}")
        weights = state[COMPONENT_LEARNER][COMPONENT_RL_MODULE][DEFAULT_MODULE_ID]
        if config.lora is not None:
            weights = MergedWeights(config.model_name_or_path, config.lora, config.dtype)(weights)
        write_model(folder, weights, config.model_name_or_path, dtype)

    @override(Algorithm)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return super().get_state(*args, **kwargs) | {NEXT_QUESTION: self._next_question}

    @override(Algorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._next_question = state.get(NEXT_QUESTION, self._next_question)
        self._drop_questions()
        if COMPONENT_LEARNER_GROUP in state:
            self._push_restored_weights()

    @override(Algorithm)
    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        super().restore_from_path(path, *args, **kwargs)
        self._push_restored_weights()

    def _drop_questions(self) -> None:
        """Gives up what is under way; what has not been trained will be asked again."""
        for dispatcher in {self._dispatcher, self._evaluation_dispatcher}:
            dispatcher.drop_all()
        self._asked_until = self._next_question

    def _push_restored_weights(self) -> None:
        """What is under way was sampled by other weights."""
        self._drop_questions()
        for group in filter(None, (self.env_runner_group, self.eval_env_runner_group)):
            self._push_weights(group, force=True)
