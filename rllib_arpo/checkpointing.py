"""Saves checkpoints to a run's storage and restores them: learners write and read their files there themselves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core import COMPONENT_LEARNER_GROUP
from ray.rllib.utils.annotations import override

from rllib_arpo.files import check_files, write_checksums
from rllib_arpo.policy.module_checkpoint import resolve

if TYPE_CHECKING:
    from ray.tune import Checkpoint

    from rllib_arpo.learner.learner_group import ARPOLearnerGroup


class SharedCheckpoints(Algorithm):
    """The part of an algorithm that saves and restores checkpoints without moving the learners' files.

    The checkpoint and each learner's folder in it have checksums (`files.CHECKSUMS`), which are compared
    before anything is restored.
    """

    learner_group: ARPOLearnerGroup
    #: `weight_sync` of the user's configuration; that of `config` names the transport that fits to this machine.
    _given_weight_sync: str
    _restored_from: Checkpoint | None = None

    def _check_storage(self) -> None:
        """Raises ValueError if a learner does not see the storage of a run of Tune."""
        if self._storage is not None:
            self.learner_group.check_storage(self._storage.trial_fs_path, self._storage.storage_filesystem)

    @override(Algorithm)
    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Like Tune's, which copies a folder of this machine to the storage; the learners write into the copy.

        Raises:
            ValueError: within a run of Tune a folder is given, which would lack the learners' part.
        """
        if self._storage is None:
            return super().save(checkpoint_dir)
        if checkpoint_dir is not None:
            raise ValueError("checkpoint_dir: save() writes to the storage of Tune's run; say save_to_path(dir).")
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
        """Within a run of Tune without the learners' part, which `save` adds."""
        state = None if self._storage is None else self.get_state(not_components=COMPONENT_LEARNER_GROUP)
        self.save_to_path(checkpoint_dir, state=state, use_msgpack=self.config._use_msgpack_checkpoints)

    @override(Algorithm)
    def save_to_path(
        self, path: Any = None, *, state: dict[str, Any] | None = None, filesystem: Any = None, **kwargs: Any
    ) -> str:
        """Like RLlib's, but the learners write their own state, without the driver (`ARPOLearnerGroup`).

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
        """Like RLlib's; a restored algorithm chooses a transport of its own for `weight_sync="auto"`."""
        (config,), kwargs = super().get_ctor_args_and_kwargs()
        return ({**config, "weight_sync": self._given_weight_sync},), kwargs

    @classmethod
    @override(Algorithm)
    def from_checkpoint(cls, path: Any, filesystem: Any = None, **kwargs: Any) -> Algorithm:
        """Like RLlib's, also of a relative path."""
        if isinstance(path, str | Path):
            path, filesystem = resolve(path, filesystem)
        algorithm: Algorithm = super().from_checkpoint(path, filesystem, **kwargs)
        return algorithm

    @override(Algorithm)
    def restore(self, checkpoint_path: Any) -> None:
        """Like Tune's, which may copy the storage to this machine; the copy is not what is read."""
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
        """Like RLlib's, without the driver.

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
            kwargs["component"] = component  # RLlib looks into it, so None would raise.
        super().restore_from_path(path, filesystem=filesystem, **kwargs)
