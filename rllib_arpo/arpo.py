"""`ARPO`, Agentic Reinforced Policy Optimization (arXiv 2507.19849) as an RLlib algorithm."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import COMPONENT_ENV_RUNNER, COMPONENT_LEARNER_GROUP, DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    TIMERS,
)
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.tune.result import TIME_TOTAL_S

from rllib_arpo import validation
from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.connectors.users import apply_user_connectors, user_connectors
from rllib_arpo.core.metric import measure
from rllib_arpo.core.rollout_history import EarlierQuestion, RolloutHistory
from rllib_arpo.envs.registry import ENVIRONMENTS
from rllib_arpo.faults import ANSWER_TIMEOUT_S, check_constructed
from rllib_arpo.files import check_files, write_checksums
from rllib_arpo.learner.sharding import NonFiniteLossError
from rllib_arpo.options.paths import KEYS_WITH_PATHS, with_absolute_paths
from rllib_arpo.policy.module_checkpoint import resolve
from rllib_arpo.record.recorder import TreeRecorder, trial_folder
from rllib_arpo.rollout.dispatch import QuestionDispatcher
from rllib_arpo.rollout.messages import Purpose, SamplingConditions, question_refs
from rllib_arpo.rollout.metric_table import BATCH_METRICS, nested, rollout_metrics
from rllib_arpo.rollout.question_stream import QuestionStream
from rllib_arpo.rollout.seeds import trial_seed
from rllib_arpo.rollout.settings import rollout_reference
from rllib_arpo.tracking.console import MESSAGES, ROLLOUT_TIMER, SYNC_TIMER, UPDATE_TIMER, Messages, evaluation_line
from rllib_arpo.tracking.iteration_log import IterationLog
from rllib_arpo.weights import WEIGHT_SYNCS
from rllib_arpo.weights.transports import choose_transport

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.rl_module import RLModule
    from ray.rllib.env.env_runner_group import EnvRunnerGroup
    from ray.tune import Checkpoint
    from ray.tune.execution.placement_groups import PlacementGroupFactory

    from rllib_arpo.learner.learner_group import ARPOLearnerGroup
    from rllib_arpo.rollout.messages import SampledQuestion
    from rllib_arpo.weights import WeightSync

logger = logging.getLogger("rllib_arpo")
OTHER_QUESTIONS = 'evaluation_config={"env_config": {"split": "test"}} asks others'

#: Key of the algorithm's state: the number of the first question that has not been asked yet.
NEXT_QUESTION = "next_question"
QUESTION_DRAWS = "question_draws"
#: Key of the algorithm's state: how many batches it has trained on, which is also the seed of the next batch's order.
NUM_UPDATES = "num_updates"
ITERATIONS_WITHOUT_SIGNAL = "iterations_without_signal"
#: Key of the algorithm's state: measurements after tool responses of the last questions (`RolloutHistory`).
ROLLOUT_HISTORY = "rollout_history"


def asks_training_questions(config: AlgorithmConfig, evaluation_config: AlgorithmConfig) -> bool:
    """Whether an environment of this package evaluates on the questions of training."""
    return config.env in ENVIRONMENTS and evaluation_config.env_config == config.env_config


class ARPO(Algorithm):
    """Samples a tree of trajectories per question, updates the policy on the trees, and pushes the new weights."""

    config_class: ClassVar[type[ARPOConfig]] = ARPOConfig
    learner_group: ARPOLearnerGroup
    #: Whether the first `training_step` evaluates the model before it trains it (`EvaluateBeforeTraining`).
    evaluates_first = False
    #: The checkpoint that Tune restores: learners read it in the storage, not in Tune's copy on the driver's machine.
    _restored_from: Checkpoint | None = None

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> ARPOConfig:
        return cls.config_class()

    @classmethod
    @override(Algorithm)
    def default_resource_request(cls, config: AlgorithmConfig | dict[str, Any]) -> PlacementGroupFactory:
        if isinstance(config, dict):  # Tune hands this very dict on to the trial, which runs in another folder.
            config.update({key: with_absolute_paths(config[key], key) for key in KEYS_WITH_PATHS & config.keys()})
        factory = super().default_resource_request(config)
        validation.check_cluster_resources(factory.bundles, factory.strategy)
        return factory

    @override(Algorithm)
    def setup(self, config: ARPOConfig) -> None:
        self._given_weight_sync = config.weight_sync
        self.config = config = self._decided(config)
        self.last_evaluation: list[SampledQuestion] = []
        self.last_sampled: list[SampledQuestion] = []
        self._rollout_history = RolloutHistory(config.entropy_baseline_questions or config.questions_per_batch)
        self._num_updates = 0
        self._recorder = TreeRecorder(config, partial(trial_folder, self))
        self.messages = Messages()
        logger.addHandler(self.messages)
        self._is_stopped = False
        self.metrics = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
        try:
            self._setup_rllib(config)
            self._warn_of_training_questions()
            spaces = self.env_runner_group.get_spaces()[DEFAULT_MODULE_ID]
            self._user_connectors = user_connectors(config._learner_connector, *spaces)
            self._check_storage()
            self._push_weights()
        except BaseException:
            # Tune does not clean up after a failed setup, so engines' threads and processes would live on.
            self.cleanup()
            raise
        self._sampled_at = time.perf_counter()

    def _setup_rllib(self, config: ARPOConfig) -> None:
        """Runs RLlib's own setup. If an env runner could not be made, this raises its error instead of a later one."""
        try:
            super().setup(config)
        finally:
            for group in self._groups():
                check_constructed(group._worker_manager)

    def _warn_of_training_questions(self) -> None:
        """Warns if an environment of this package evaluates on the questions of training."""
        if self.config.evaluation_interval and asks_training_questions(self.config, self.evaluation_config):
            logger.warning("The evaluation asks training's questions; %s.", OTHER_QUESTIONS)

    def _groups(self) -> list[EnvRunnerGroup]:
        """The groups of env runners: training's, and evaluation's if it has its own."""
        return [group for group in (self.env_runner_group, self.eval_env_runner_group) if group is not None]

    @cached_property
    def _log(self) -> IterationLog:
        return IterationLog(self.metrics)

    def _decided(self, config: ARPOConfig) -> ARPOConfig:
        """Decides what the configuration leaves open; the result records which values were chosen.

        A trial without a seed draws one, and its checkpoints keep it. `weight_sync="auto"` becomes the name of a
        transport, but checkpoints keep "auto", because other machines may restore them.
        """
        storage = self._storage  # Tune's; RLlib drops the trial's id.
        config = config.copy(copy_frozen=False)
        if config.seed is None:
            config.seed = trial_seed(f"{storage.experiment_dir_name}/{storage.trial_dir_name}" if storage else None)
        config.weight_sync = choose_transport(config)
        config.freeze()
        return config

    # These are made on first use, since callbacks may evaluate while the algorithm is still being set up.
    @cached_property
    def _dispatcher(self) -> QuestionDispatcher:
        return self._make_dispatcher(self.env_runner_group, self.config)

    @cached_property
    def _stream(self) -> QuestionStream:
        return QuestionStream(self._dispatcher, self.config)

    @cached_property
    def _evaluation_dispatcher(self) -> QuestionDispatcher:
        if self.eval_env_runner_group is None:
            return self._dispatcher
        return self._make_dispatcher(self.eval_env_runner_group, self.evaluation_config)

    @cached_property
    def _weight_sync(self) -> WeightSync:
        return WEIGHT_SYNCS[self.config.weight_sync](self.learner_group)

    def _make_dispatcher(self, group: EnvRunnerGroup, config: ARPOConfig) -> QuestionDispatcher:
        restore = partial(self._restore_while_sampling, group, config)
        return QuestionDispatcher(group, config, self.evaluation_config, restore)

    def _check_running(self) -> None:
        if self._is_stopped:
            raise RuntimeError("This algorithm was stopped, and its engines with it: build it again.")

    @override(Algorithm)
    def training_step(self) -> None:
        """One iteration: samples the next questions, updates on their trees, pushes the new weights to the engines."""
        self._check_running()
        if self.evaluates_first and self._num_updates == 0:
            self.messages.add(evaluation_line(self.evaluate()))
        self._push_weights()  # The user may have set weights since the last iteration.
        with self.metrics.log_time((TIMERS, ROLLOUT_TIMER), reduce="mean", window=1):
            batch = self._sample_batch()
        with self.metrics.log_time((TIMERS, UPDATE_TIMER), reduce="mean", window=1):
            if level := self.config.sleep_level:
                for dispatcher in {self._dispatcher, self._evaluation_dispatcher}:
                    dispatcher.sleep(level)
            self._update(batch)
        with self.metrics.log_time((TIMERS, SYNC_TIMER), reduce="mean", window=1):
            self._push_weights()

    def _sample_batch(self) -> list[SampledQuestion]:
        """Returns the questions for this iteration's update, and logs the outcome of every question asked.

        Their trees are in `last_sampled` until the next iteration.
        """
        start = self._sampled_at if self.config.max_weight_lag else time.perf_counter()
        batch = self._stream.next_batch(self._conditions())
        self._sampled_at = time.perf_counter()
        asked = self.last_sampled = batch.asked
        metrics = rollout_metrics(asked, self._sampled_at - start, batch.num_given_up) | measure(BATCH_METRICS, batch)
        self.metrics.aggregate(self._dispatcher.take_metrics(Purpose.TRAINING), key=ENV_RUNNER_RESULTS)
        self._log.batch(asked, metrics, self.config)
        self._rollout_history.extend(EarlierQuestion.of(one.tree, one.entropy_window) for one in asked)
        return batch.questions

    def _conditions(self) -> SamplingConditions:
        """The conditions of sampling; all env runners have the same reference, which changes only between batches."""
        return SamplingConditions(self._weight_version, rollout_reference(self._rollout_history, self.config))

    def _update(self, batch: Sequence[SampledQuestion]) -> None:
        from rllib_arpo.learner.training_data import QuestionBatch

        turns = self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0)
        episodes = apply_user_connectors(self._user_connectors, [s.episode for s in batch], self.metrics)
        data = QuestionBatch.plan(episodes, self.config, seed=self._num_updates)
        if self._num_updates == 0:
            self._log.first_batch(self.last_sampled, self.config, data.has_signal)
        recorded = self._num_updates + 1, self.last_sampled, episodes, data.statistics
        self._recorder.training(*recorded)
        try:
            results = self.learner_group.update(training_data=data, timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: turns})
        except NonFiniteLossError as error:
            path = self._recorder.failed(*recorded, error.question_ids)
            error.add_note(f"The questions are in {path}.")
            raise
        self._num_updates += 1
        self.metrics.aggregate(results, key=LEARNER_RESULTS)
        self._log.alarms(self.config.guards)
        self._log.signal(self.last_sampled, data.has_signal, self.config.max_iterations_without_signal)
        if self.config.sleep_level:
            # The engines need the memory that torch keeps for the next update.
            self.learner_group.foreach_learner(lambda _learner, **_kwargs: torch.cuda.empty_cache())

    def _push_weights(self, group: EnvRunnerGroup | None = None, runners: list[int] | None = None) -> None:
        """Pushes the learner's weights to the engines of `group` and waits until they have them.

        RLlib's own `sync_weights` is fire-and-forget and silently drops a second request. An engine without the new
        weights refuses to sample (`SamplingConditions.weight_version`).
        """
        self._weight_version = self._weight_sync.push(group or self.env_runner_group, runners)

    @override(Algorithm)
    def restore_env_runners(self, env_runner_group: EnvRunnerGroup) -> list[int]:
        """Takes env runners back into service. They get the learner's weights and drop their questions.

        An env runner that Ray had only lost contact with still has old questions, which others have got since.
        """
        if restored := env_runner_group.probe_unhealthy_env_runners():
            self._counters["total_num_restored_workers"] += len(restored)
            env_runner_group.foreach_env_runner(
                "drop_questions", remote_worker_ids=restored, local_env_runner=False, timeout_seconds=ANSWER_TIMEOUT_S
            )
            self._push_weights(env_runner_group, restored)
        return restored

    def _restore_while_sampling(self, group: EnvRunnerGroup, config: ARPOConfig) -> None:
        """Restores env runners within an iteration; RLlib does the same only between iterations."""
        if restored := self.restore_env_runners(group):
            self._make_on_env_runners_recreated_callbacks(
                config=config, env_runner_group=group, restored_env_runner_indices=restored
            )

    @classmethod
    @override(Algorithm)
    def _should_create_evaluation_env_runners(cls, eval_config: AlgorithmConfig) -> bool:
        """Evaluation without its own env runners uses training's engines."""
        return eval_config.evaluation_num_env_runners > 0

    @override(Algorithm)
    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Samples the first `evaluation_duration` questions of the evaluation's environment with the current weights.

        Their trees are in `last_evaluation`.

        Returns:
            {"env_runners": the nested metrics of the rollout}, which RLlib puts under "evaluation" into the result.
        """
        self._check_running()
        self._make_callback("on_evaluate_start")
        group = self.eval_env_runner_group or self.env_runner_group
        self._push_weights(group)
        start = time.perf_counter()
        number = self._evaluation_dispatcher.num_questions(Purpose.EVALUATION, self.config.evaluation_duration)
        refs = question_refs(range(number), Purpose.EVALUATION)
        self._evaluation_dispatcher.ask(refs)
        try:
            self.last_evaluation = self._evaluation_dispatcher.collect(refs, self._conditions())
            given_up = self._evaluation_dispatcher.take_given_up()
            if not self.last_evaluation:
                raise RuntimeError(f"Every question of the evaluation failed. Last cause: {[*given_up.values()][-1]}")
        except BaseException:
            # The next evaluation must not get answers of this one.
            self._drop_questions()
            raise
        self._recorder.evaluation(self._num_updates, self.last_evaluation)
        self._log.errors(self.last_evaluation, len(given_up), self.config.max_error_share)
        metrics = rollout_metrics(self.last_evaluation, time.perf_counter() - start, len(given_up))
        # Not through `self.metrics`, which would have NaN in the next iterations' results.
        logged = MetricsLogger(root=True, stats_cls_lookup=self.config.stats_cls_lookup)
        logged.aggregate(self._evaluation_dispatcher.take_metrics(Purpose.EVALUATION))
        results = {ENV_RUNNER_RESULTS: logged.peek() | nested(metrics)}
        self._sampled_at = time.perf_counter()  # The seconds of the next batch begin here.
        self._make_callback("on_evaluate_end", evaluation_metrics=results)
        return results

    def _make_callback(self, name: str, **kwargs: Any) -> None:
        make_callback(
            name,
            callbacks_objects=self.callbacks,
            callbacks_functions=getattr(self.config, f"callbacks_{name}"),
            kwargs={"algorithm": self, "metrics_logger": self.metrics, **kwargs},
        )

    @override(Algorithm)
    def log_result(self, result: dict[str, Any]) -> None:
        super().log_result(result)
        if messages := self.messages.take():
            result[MESSAGES] = {str(i): line for i, line in enumerate(messages)}

    @override(Algorithm)
    def cleanup(self) -> None:
        if self._is_stopped:
            return
        self._is_stopped = True
        super().cleanup()
        self._recorder.close()
        logger.removeHandler(self.messages)

    @override(Algorithm)
    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule | None:
        """The learner's module, or a copy of it if the learners have their own processes.

        RLlib's own method would ask an env runner, which has an engine instead of a module.
        """
        return self.learner_group.get_module(module_id)

    @override(Algorithm)
    def set_weights(self, weights: dict[str, Any]) -> None:
        """Gives learners and engines new weights. RLlib's own method needs a local env runner with a module."""
        if set(weights) != {DEFAULT_MODULE_ID}:
            raise ValueError(f"set_weights: the only module is {DEFAULT_MODULE_ID!r}, not {sorted(map(str, weights))}.")
        self.learner_group.set_weights(weights)
        self._push_restored_weights()

    @override(Algorithm)
    def get_policy(self, policy_id: str = DEFAULT_MODULE_ID) -> NoReturn:
        """Raises an error, so RLlib's methods that need a policy fail as well: single actions, exports."""
        raise ValueError("ARPO has no Policy, since an engine samples: use get_module(), save_model() or evaluate().")

    @override(Algorithm)
    def add_module(self, module_id: str, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(f"add_module({module_id!r}): ARPO has one policy, which plays every trajectory.")

    @override(Algorithm)
    def remove_module(self, module_id: str, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(f"remove_module({module_id!r}): ARPO has one policy, which plays every trajectory.")

    def save_model(self, folder: str | Path, dtype: str | None = None) -> None:
        """Writes the model with its current weights for Hugging Face's `from_pretrained`; it merges a LoRA.

        `rllib-arpo export` makes the same from a checkpoint.

        Args:
            folder: a folder on the driver's machine for safetensors, configuration and tokenizer.
            dtype: the dtype of the written weights, such as "bfloat16"; None: float32, as trained.
        """
        from rllib_arpo.policy.lora import MergedWeights
        from rllib_arpo.policy.module_checkpoint import write_model

        config = self.config
        weights = self.learner_group.module_state()[DEFAULT_MODULE_ID]
        if config.lora is not None:
            weights = MergedWeights(config.model_name_or_path, config.lora, config.dtype)(weights)
        write_model(folder, weights, config.model_name_or_path, dtype)

    @override(Algorithm)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return super().get_state(*args, **kwargs) | {
            NEXT_QUESTION: self._stream.next_number,
            QUESTION_DRAWS: self._stream.draws.get_state(),
            ROLLOUT_HISTORY: self._rollout_history.get_state(),
            NUM_UPDATES: self._num_updates,
            ITERATIONS_WITHOUT_SIGNAL: self._log.num_without_signal,
            TIME_TOTAL_S: self._time_total,
        }

    @override(Algorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        # RLlib would look for connectors in this component; an env runner of ARPO has none.
        super().set_state({key: value for key, value in state.items() if key != COMPONENT_ENV_RUNNER})
        if ROLLOUT_HISTORY in state:
            self._rollout_history.set_state(state[ROLLOUT_HISTORY])
        self._num_updates = state.get(NUM_UPDATES, self._num_updates)
        self._log.num_without_signal = state.get(ITERATIONS_WITHOUT_SIGNAL, 0)
        self._time_total: float = state.get(TIME_TOTAL_S, self._time_total)  # A resumed run is a new trial of Tune.
        self._drop_questions(state.get(NEXT_QUESTION), state.get(QUESTION_DRAWS))
        if COMPONENT_LEARNER_GROUP in state:
            self._push_restored_weights()

    def _drop_questions(self, *checkpoint: Any) -> None:
        """Drops all questions in flight; see `QuestionStream.restart`."""
        self._stream.restart(*checkpoint)
        if self._evaluation_dispatcher is not self._dispatcher:
            self._evaluation_dispatcher.drop_all()

    def _push_restored_weights(self) -> None:
        """Drops the questions in flight, which other weights sampled, and pushes the restored weights."""
        self._drop_questions()
        for group in self._groups():
            self._push_weights(group)

    def _check_storage(self) -> None:
        """Raises a ValueError if a learner does not see the storage of Tune's run."""
        if self._storage is not None:
            self.learner_group.check_storage(self._storage.trial_fs_path, self._storage.storage_filesystem)

    @override(Algorithm)
    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Like Tune's, which copies a folder of this machine to the storage; then the learners write into that copy.

        Raises:
            ValueError: `checkpoint_dir` is set within a run of Tune; it would lack the learners' part.
        """
        if self._storage is None:
            return super().save(checkpoint_dir)
        if checkpoint_dir is not None:
            raise ValueError("checkpoint_dir: save() writes to the storage of Tune's run; use save_to_path(dir).")
        with tempfile.TemporaryDirectory() as folder:
            result = super().save(folder)
        path, filesystem = result.checkpoint.path, result.checkpoint.filesystem
        try:
            self.learner_group.save_to_path(
                f"{path}/{COMPONENT_LEARNER_GROUP}",
                filesystem=filesystem,
                use_msgpack=self.config._use_msgpack_checkpoints,
            )
            write_checksums(path, filesystem)
        except BaseException:
            filesystem.delete_dir(path)
            raise
        return result

    @override(Algorithm)
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Saves the state, within a run of Tune without the learners' part, which `save` adds."""
        state = None if self._storage is None else self.get_state(not_components=COMPONENT_LEARNER_GROUP)
        self.save_to_path(checkpoint_dir, state=state, use_msgpack=self.config._use_msgpack_checkpoints)

    @override(Algorithm)
    def save_to_path(
        self, path: Any = None, *, state: dict[str, Any] | None = None, filesystem: Any = None, **kwargs: Any
    ) -> str:
        """Like RLlib's, but the learners write their state themselves, not the driver (`ARPOLearnerGroup`).

        Raises:
            ValueError: a learner does not see `path`.
            RuntimeError: a learner could not write its state.
        """
        if state is None:
            state = self.get_state(not_components=COMPONENT_LEARNER_GROUP) | {COMPONENT_LEARNER_GROUP: None}
        if path is not None:
            path, filesystem = resolve(path, filesystem)
        saved: str = super().save_to_path(path, state=state, filesystem=filesystem, **kwargs)
        write_checksums(*resolve(saved, filesystem))
        return saved

    @override(Algorithm)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Like RLlib's, but with the given `weight_sync`: a restored algorithm decides "auto" again."""
        (config,), kwargs = super().get_ctor_args_and_kwargs()
        return ({**config, "weight_sync": self._given_weight_sync},), kwargs

    @classmethod
    @override(Algorithm)
    def from_checkpoint(cls, path: Any, filesystem: Any = None, **kwargs: Any) -> Algorithm:
        """Like RLlib's, but also takes a relative path."""
        if isinstance(path, str | Path):
            path, filesystem = resolve(path, filesystem)
        algorithm: Algorithm = super().from_checkpoint(path, filesystem, **kwargs)
        return algorithm

    @override(Algorithm)
    def restore(self, checkpoint_path: Any) -> None:
        """Like Tune's, which may copy the storage to this machine; ARPO reads the storage, not the copy."""
        checkpoint = getattr(checkpoint_path, "checkpoint", checkpoint_path)
        self._restored_from = None if isinstance(checkpoint, str) else checkpoint
        try:
            super().restore(checkpoint_path)
        finally:
            self._restored_from = None

    @override(Algorithm)
    def restore_from_path(
        self, path: Any, *, component: str | None = None, filesystem: Any = None, **kwargs: Any
    ) -> None:
        """Like RLlib's, but the learners read their state themselves, not the driver.

        Raises:
            ValueError: a file is not the one that was saved, or a learner does not see `path`.
            RuntimeError: a learner could not restore its state.
        """
        if self._restored_from is not None:
            path, filesystem = self._restored_from.path, self._restored_from.filesystem
        path, filesystem = resolve(path, filesystem)
        if component is None:
            check_files(path, filesystem)
        else:
            kwargs["component"] = component  # RLlib searches in it, so None would raise.
        super().restore_from_path(path, filesystem=filesystem, **kwargs)
        self._push_restored_weights()
