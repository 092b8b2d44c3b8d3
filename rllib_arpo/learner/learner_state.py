"""The state of a learner: what checkpoints keep of it, where Adam's lies, and which version of the weights it has."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from rllib_arpo.files import check_files, write_checksums
from rllib_arpo.policy.llm_rl_module import COMPUTE_DTYPES
from rllib_arpo.policy.module_checkpoint import resolve
from rllib_arpo.policy.sharded_state import load_optimizer_state, optimizer_state
from rllib_arpo.weights.snapshot import WeightSnapshot, probe_tokens


@contextmanager
def states_on_device(optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> Iterator[None]:
    """Within this context the states are on `device`, where the optimizers step; afterwards on the CPU."""
    optimizers = list(optimizers)
    move_states(optimizers, device)
    try:
        yield
    finally:
        move_states(optimizers, torch.device("cpu"))


def move_states(optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> None:
    """Moves the tensors that have their parameter's shape; step counters stay where the optimizer needs them."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    state[name] = value.to(device)


class StatefulLearner(TorchLearner):
    """The part of a learner of one `LLMRLModule` that saves, restores and names its weights."""

    @override(TorchLearner)
    def build(self) -> None:
        super().build()
        self._weight_version = 0
        self._num_changes = self.module[DEFAULT_MODULE_ID].num_changes()

    @property
    def weight_version(self) -> int:
        """The number of changes of the weights in this process: updates, restored states, and changes by a user.

        It names the weights: no two states of this learner share a version, whatever checkpoints they come from.
        Changes between two calls count as one. A change through a tensor's `data` is one that torch does not count.
        """
        if self.module[DEFAULT_MODULE_ID].num_changes() != self._num_changes:
            self._count_update()
        return self._weight_version

    def _count_update(self) -> None:
        self._weight_version += 1
        self._num_changes = self.module[DEFAULT_MODULE_ID].num_changes()

    @property
    def engine_dtype(self) -> torch.dtype | None:
        """The type to which weights are cast for an engine; None: none.

        The cast is on the learner's device, so that half as much travels where it is a 16-bit type, and the engine
        casts nothing. An adapter stays as it is: it is merged into the base before the cast.
        """
        return COMPUTE_DTYPES[self.config.dtype] if self.config.lora is None else None

    def weight_snapshot(self, *, with_weights: bool = True) -> WeightSnapshot:
        """The trained weights for an engine, with a probe; valid until the next update (`LLMRLModule.weight_views`)."""
        module = self.module[DEFAULT_MODULE_ID]
        probe = probe_tokens(module.vocab_size, self.config.max_context_tokens)
        weights = module.weight_views(self.engine_dtype) if with_weights else None
        return WeightSnapshot(self.weight_version, weights, probe, module.score(probe))

    @override(TorchLearner)
    def _get_optimizer_state(self) -> dict[str, Any]:
        return {
            name: {"module_id": DEFAULT_MODULE_ID, "state": optimizer_state(optimizer)}
            for name, optimizer in self._named_optimizers.items()
        }

    @override(TorchLearner)
    def _set_optimizer_state(self, state: dict[str, Any]) -> None:
        """RLlib's own would round fp64 to fp32."""
        for name, of_optimizer in state.items():
            optimizer, saved = self._named_optimizers[name], of_optimizer["state"]
            load_optimizer_state(optimizer, saved)
            if self._optimizer_lr_schedules[optimizer].use_schedule:
                # Each update sets the rate of the next one.
                self._set_optimizer_lr(optimizer, saved["param_groups"][0]["lr"])

    @override(Learner)
    def set_state(self, state: dict[str, Any]) -> None:
        """Restores weights and optimizer, also from an earlier checkpoint.

        RLlib's own method would restore the optimizer and silently keep the newer weights.
        """
        if WEIGHTS_SEQ_NO in state:
            self._weights_seq_no = -1
        super().set_state(state)
        if WEIGHTS_SEQ_NO in state:
            self._weights_seq_no = state[WEIGHTS_SEQ_NO]

    @override(Learner)
    def save_to_path(self, path: Any = None, *, filesystem: Any = None, **kwargs: Any) -> str:
        """Like RLlib's, with checksums of the files."""
        if path is not None:
            path, filesystem = resolve(path, filesystem)
        saved: str = super().save_to_path(path, filesystem=filesystem, **kwargs)
        write_checksums(*resolve(saved, filesystem))
        return saved

    @override(Learner)
    def restore_from_path(self, path: Any, *, component: str | None = None, filesystem: Any = None, **kw: Any) -> None:
        """Like RLlib's, but raises ValueError if a file is not the one that was saved."""
        path, filesystem = resolve(path, filesystem)
        if component is None:
            check_files(path, filesystem)
        super().restore_from_path(path, component=component, filesystem=filesystem, **kw)
