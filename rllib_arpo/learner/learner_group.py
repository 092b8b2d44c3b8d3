"""A learner group in which either all learners answer or none does, since one learner may wait for another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.annotations import override

from rllib_arpo.learner.sharding import SHARDINGS

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.rl_module import RLModule

    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
    from rllib_arpo.learner.training_data import QuestionBatch

T = TypeVar("T")

#: Seconds that the other learners get when one has failed. They may wait for it for ever in a collective.
FAILURE_GRACE_S = 20.0


class LearnerDiedError(RuntimeError):
    """A learner's process has ended. The others lack its part of the gradients, so the run ends too."""


class ARPOLearnerGroup(LearnerGroup):
    """RLlib's learner group, for learners that hold parts of one state and whose updates have collectives.

    RLlib's own group asks only the first learner for the state, waits for ever when one learner has failed, and drops
    errors when learners restore a state.
    """

    @override(LearnerGroup)
    def update(self, *, training_data: QuestionBatch, timesteps: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """One update on all learners; see `ARPOTorchLearner.update` for arguments and errors.

        Returns:
            the metrics of each learner.

        Raises:
            LearnerDiedError: a learner's process has ended.
        """
        if self.is_local:
            return super().update(training_data=training_data, timesteps=timesteps)
        shards = [shard for shard, _ in training_data.shard(len(self))]
        calls = {
            index: learner.update.remote(training_data=shard, timesteps=timesteps)
            for index, (learner, shard) in enumerate(zip(self._workers, shards, strict=True))
        }
        return self._answers(calls)

    def on_first(self, function: Callable[[ARPOTorchLearner], T], timeout_s: float | None = None) -> T:
        """Returns the result of `function` on the first learner.

        If each learner holds only a part of the model, all of them run the function, so that it can read weights and
        compute with them; the method drops the other learners' results.

        Raises:
            TimeoutError: a learner has not answered within `timeout_s`.
            LearnerDiedError: a learner's process has ended.
        """
        if self.is_local:
            return function(self._learner)
        learners = self._workers if self._holds_part else self._workers[:1]
        calls = {i: learner.apply.remote(partial(_call, function, i == 0)) for i, learner in enumerate(learners)}
        return self._answers(calls, timeout_s)[0]

    @property
    def _holds_part(self) -> bool:
        """Whether each learner has only a part of the model."""
        return SHARDINGS[self.config.sharding].holds_part

    @override(LearnerGroup)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The first learner's state; empty if `inference_only`, since engines get weights through `WeightSync`."""
        if not self._check_component(COMPONENT_LEARNER, components, not_components):
            return {}
        if inference_only:
            return {COMPONENT_LEARNER: {COMPONENT_RL_MODULE: {}}}
        wanted = self._get_subcomponents(COMPONENT_LEARNER, components)
        unwanted = self._get_subcomponents(COMPONENT_LEARNER, not_components)
        read = partial(_state, components=wanted, not_components=unwanted, **kwargs)
        return {COMPONENT_LEARNER: self.on_first(read)}

    def module_state(self) -> dict[str, Any]:
        """The first learner's state of its `MultiRLModule`."""
        state = self.get_state(components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}")
        return state[COMPONENT_LEARNER][COMPONENT_RL_MODULE]

    def get_module(self, module_id: str) -> RLModule | None:
        """The learner's module; a copy of it where the learners have processes of their own."""
        if self.is_local:
            return self._learner.module.get(module_id)
        module = copy.deepcopy(self._module_spec).build()
        module.set_state(self.module_state())
        return module.get(module_id)

    @override(LearnerGroup)
    def save_to_path(self, path: Any = None, *, state: dict[str, Any] | None = None, **kwargs: Any) -> str:
        """Like RLlib's: the first learner writes its own state. A learner that holds only a part first gets the whole.

        Raises:
            RuntimeError: the learner could not write its state.
        """
        if state is None and self._holds_part:
            state = self.get_state()
        path = super().save_to_path(path, state=state, **kwargs)
        self._check_all_did("save its state to", path)
        return path

    @override(LearnerGroup)
    def set_state(self, state: dict[str, Any]) -> None:
        """Gives every learner the whole state, of which it takes its part."""
        if COMPONENT_LEARNER not in state:
            return
        if self.is_local:
            self._learner.set_state(state[COMPONENT_LEARNER])
            return
        shared = ray.put(state[COMPONENT_LEARNER])
        self._answers({i: learner.apply.remote(_set_state, shared) for i, learner in enumerate(self._workers)})

    @override(LearnerGroup)
    def restore_from_path(self, path: Any, **kwargs: Any) -> None:
        """Like RLlib's, but raises if a learner fails.

        Raises:
            RuntimeError: a learner could not restore its state.
        """
        super().restore_from_path(path, **kwargs)
        self._check_all_did("restore its state from", path)

    def _check_all_did(self, what: str, path: Any) -> None:
        """Raises if a learner failed: RLlib drops the error, but marks the learner as unhealthy."""
        if self.is_remote and self._worker_manager.num_healthy_actors() < len(self):
            raise RuntimeError(f"A learner could not {what} {path}: the log has its error.")

    def _answers(self, calls: dict[int, ray.ObjectRef], timeout_s: float | None = None) -> list[Any]:
        """The answers to `calls` (by index of the learner), in order, or the first error."""
        pending = list(calls.values())
        while pending:
            ready, pending = ray.wait(pending, num_returns=1, timeout=timeout_s)
            if not ready:
                raise TimeoutError(f"A learner has not answered for {timeout_s:g} s.")
            try:
                ray.get(ready)
            except RayError as error:
                self._give_up(calls, error)
        return ray.get(list(calls.values()))

    def _give_up(self, calls: dict[int, ray.ObjectRef], error: RayError) -> None:
        """Raises the cause; ends learners that do not answer within the grace period."""
        answered, waiting = ray.wait(list(calls.values()), num_returns=len(calls), timeout=FAILURE_GRACE_S)
        deaths = {index: death for index, call in calls.items() if call in answered and (death := _death(call))}
        for index, call in calls.items():
            if call in waiting:
                ray.kill(self._workers[index])
        for index, death in deaths.items():
            raise LearnerDiedError(
                f"Learner {index} has died and the run ends with it; the last checkpoint resumes it. {death}"
            ) from death
        raise error


def _call(function: Callable[[ARPOTorchLearner], T], is_first: bool, learner: ARPOTorchLearner) -> T | None:
    answer = function(learner)
    return answer if is_first else None


def _state(learner: ARPOTorchLearner, **kwargs: Any) -> dict[str, Any]:
    return learner.get_state(**kwargs)


def _set_state(learner: ARPOTorchLearner, state: dict[str, Any]) -> None:
    learner.set_state(state)


def _death(call: ray.ObjectRef) -> RayActorError | None:
    """The reason why the learner cannot answer `call`; None if it has answered, even with an error."""
    try:
        ray.get(call)
    except RayActorError as death:
        return death
    except RayError:
        return None
    return None
