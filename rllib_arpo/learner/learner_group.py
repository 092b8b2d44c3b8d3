"""A learner group in which either all learners answer or none does, since one learner may wait for another."""

from __future__ import annotations

import copy
import math
import time
import uuid
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import ray
from pyarrow.fs import FileType
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.annotations import override

from rllib_arpo.learner.sharding import SHARDINGS
from rllib_arpo.policy.sharded_state import read_by_first

if TYPE_CHECKING:
    from pathlib import Path

    from pyarrow.fs import FileSystem
    from ray.rllib.core.rl_module.rl_module import RLModule

    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
    from rllib_arpo.learner.training_data import QuestionBatch

T = TypeVar("T")

#: Seconds in which the other learners must answer when one has failed: a collective may make them wait forever.
FAILURE_GRACE_S = 20.0


class LearnerDiedError(RuntimeError):
    """A learner's process has ended, or hangs. The others lack its part of the gradients, so the run ends."""


class ARPOLearnerGroup(LearnerGroup):
    """RLlib's learner group, for learners that hold parts of one state and whose updates have collectives.

    RLlib's own group asks only the first learner for the state, waits forever if one learner has failed or hangs, drops
    errors when learners restore a state, and sends checkpoints, which may not exceed 1 GiB, through the driver.
    """

    @override(LearnerGroup)
    def update(self, *, training_data: QuestionBatch, timesteps: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Makes one update on all learners; see `ARPOTorchLearner.update` for arguments and errors.

        Returns:
            the metrics of each learner.

        Raises:
            LearnerDiedError: a learner's process has ended.
        """
        if self.is_local:
            return super().update(training_data=training_data, timesteps=timesteps)
        data = ray.put(training_data)
        calls = {
            index: learner.update.remote(training_data=data, timesteps=timesteps)
            for index, learner in enumerate(self._workers)
        }
        return self._answers(calls)

    def on_first(self, function: Callable[[ARPOTorchLearner], T], timeout_s: float | None = None) -> T:
        """Returns the result of `function` on the first learner.

        If each learner holds only a part of the model, all of them run the function, which may read weights and compute
        with them; this method drops the other learners' results.

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
        read = {"components": wanted, "not_components": unwanted, **kwargs}
        return {COMPONENT_LEARNER: self.on_first(lambda learner: learner.get_state(**read))}

    def module_state(self) -> dict[str, Any]:
        """The first learner's state of its `MultiRLModule`."""
        state = self.get_state(components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}")
        return state[COMPONENT_LEARNER][COMPONENT_RL_MODULE]

    def get_module(self, module_id: str) -> RLModule | None:
        """The learner's module, or a copy of it if the learners have processes of their own."""
        if self.is_local:
            return self._learner.module.get(module_id)
        module = copy.deepcopy(self._module_spec).build()
        module.set_state(self.module_state())
        return module.get(module_id)

    @override(LearnerGroup)
    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        return [(COMPONENT_LEARNER, self._learner if self.is_local else _LearnerFiles(self))]

    @override(LearnerGroup)
    def save_to_path(self, path: Any = None, *, state: dict[str, Any] | None = None, **kwargs: Any) -> str:
        """Saves like RLlib's method, but the first learner writes its state itself, on any machine.

        Raises:
            ValueError: a learner does not see `path` (`check_storage`).
            RuntimeError: the learner could not write its state.
        """
        return super().save_to_path(path, state=state or {COMPONENT_LEARNER: None}, **kwargs)

    def check_storage(self, folder: str, filesystem: FileSystem) -> None:
        """Raises ValueError unless all learners see what this process writes into `folder`."""
        if self.is_local:
            return
        filesystem.create_dir(folder, recursive=True)
        probe = f"{folder}/.probe-{uuid.uuid4().hex}"
        filesystem.open_output_stream(probe).close()
        try:
            self.check_seen(probe, filesystem)
        finally:
            filesystem.delete_file(probe)

    def check_seen(self, path: str, filesystem: FileSystem) -> None:
        """Raises ValueError unless all learners see `path`."""
        answers = self._on_all(_node_without, path, filesystem)
        if blind := sorted({node for node in answers if node is not None}):
            raise ValueError(
                f"The learners on {', '.join(blind)} do not see {path}: put checkpoints (Tune's storage_path) on "
                "storage that the machines of all learners share."
            )

    def _on_all(self, function: Callable[..., T], *args: Any) -> list[T]:
        return self._answers({i: learner.apply.remote(function, *args) for i, learner in enumerate(self._workers)})

    @override(LearnerGroup)
    def set_state(self, state: dict[str, Any]) -> None:
        """Gives the first learner the whole state; it sends the others their parts."""
        if COMPONENT_LEARNER not in state:
            return
        if self.is_local:
            self._learner.set_state(state[COMPONENT_LEARNER])
            return
        whole = ray.put(state[COMPONENT_LEARNER])
        # In a list, which Ray does not replace by the state, since only the first learner is to fetch it.
        self._on_all(lambda learner, refs: learner.set_state(read_by_first(lambda: ray.get(refs[0]))), [whole])

    def _answers(self, calls: dict[int, ray.ObjectRef], timeout_s: float | None = None) -> list[Any]:
        """The answers to `calls` (by index of the learner), in order, or the first error.

        Raises:
            TimeoutError: a learner has not answered within `timeout_s`.
            LearnerDiedError: a learner has died, or has not answered for `learner_timeout_s`.
        """
        limit = self.config.learner_timeout_s if timeout_s is None else timeout_s
        deadline = math.inf if limit is None else time.monotonic() + limit
        pending = list(calls.values())
        while pending:
            left = None if limit is None else max(0.0, deadline - time.monotonic())
            ready, pending = ray.wait(pending, num_returns=1, timeout=left)
            if not ready and timeout_s is None:
                self._end_hung({index for index, call in calls.items() if call in pending})
            if not ready:
                raise TimeoutError(f"A learner has not answered for {limit:g} s.")
            try:
                ray.get(ready)
            except RayError as error:
                self._give_up(calls, error)
        return ray.get(list(calls.values()))

    def _end_hung(self, learners: set[int]) -> NoReturn:
        for index in learners:
            ray.kill(self._workers[index])
        names = ", ".join(map(str, sorted(learners)))
        raise LearnerDiedError(
            f"Learner {names} has not answered for {self.config.learner_timeout_s:g} s (learner_timeout_s), so the run "
            "ends; resume it from the last checkpoint."
        )

    def _give_up(self, calls: dict[int, ray.ObjectRef], error: RayError) -> None:
        """Raises the cause; ends learners that do not answer within the grace period."""
        answered, waiting = ray.wait(list(calls.values()), num_returns=len(calls), timeout=FAILURE_GRACE_S)
        deaths = {index: death for index, call in calls.items() if call in answered and (death := _death(call))}
        for index, call in calls.items():
            if call in waiting:
                ray.kill(self._workers[index])
        for index, death in deaths.items():
            raise LearnerDiedError(
                f"Learner {index} has died, so the run ends; resume it from the last checkpoint. {death}"
            ) from death
        raise error


def _call(function: Callable[[ARPOTorchLearner], T], is_first: bool, learner: ARPOTorchLearner) -> T | None:
    answer = function(learner)
    return answer if is_first else None


class _LearnerFiles:
    """Saves and restores remote learners through the methods that RLlib calls on a component."""

    def __init__(self, group: ARPOLearnerGroup):
        self._group = group

    def save_to_path(self, path: Path, *, filesystem: FileSystem, state: Any = None, use_msgpack: bool = False) -> None:
        group, folder = self._group, path.as_posix()
        group.check_storage(path.parent.as_posix(), filesystem)
        ref = None if state is None else ray.put(state)
        save = partial(_save, folder=folder, filesystem=filesystem, state=ref, msgpack=use_msgpack)
        try:
            group.on_first(save)
        except RayTaskError as error:
            raise RuntimeError(f"A learner could not save its state to {folder}: {error.cause}") from error

    def restore_from_path(self, path: Path, *, filesystem: FileSystem, **kwargs: Any) -> None:
        group, folder = self._group, path.as_posix()
        group.check_seen(folder, filesystem)
        try:
            group._on_all(lambda learner: learner.restore_from_path(folder, filesystem=filesystem, **kwargs))
        except RayTaskError as error:
            raise RuntimeError(f"A learner could not restore its state from {folder}: {error.cause}") from error


def _save(
    learner: ARPOTorchLearner, folder: str, filesystem: FileSystem, state: ray.ObjectRef | None, msgpack: bool
) -> None:
    """Runs in the first learner, or in all that share the model; only the first one gets and writes the whole state."""
    own = learner.get_state() if state is None else {}
    if learner._learner_index == 0:
        whole = own if state is None else ray.get(state)
        learner.save_to_path(folder, state=whole, filesystem=filesystem, use_msgpack=msgpack)


def _node_without(_learner: ARPOTorchLearner, path: str, filesystem: FileSystem) -> str | None:
    """The address of the learner's machine if it does not see `path`."""
    is_there = filesystem.get_file_info(path).type != FileType.NotFound
    return None if is_there else ray.util.get_node_ip_address()


def _death(call: ray.ObjectRef) -> RayActorError | None:
    """The reason why the learner cannot answer `call`; None if it has answered, even with an error."""
    try:
        ray.get(call)
    except RayActorError as death:
        return death
    except RayError:
        return None
    return None
