"""transformers' Trainer, which here also splits models among processes on CPUs."""

from collections.abc import Callable
from typing import Any

from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from transformers import Trainer, TrainerCallback, TrainerState


class ColdStartTrainer(Trainer):
    """The Trainer with FSDP2 on every device: on CPUs accelerate drops it in silence and trains replicas."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if self.args.fsdp and state.distributed_type == DistributedType.MULTI_CPU:
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            if self.args.bf16:
                state.fsdp_plugin.set_mixed_precision("bf16")
            state.distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled = True


class TellsSteps(TrainerCallback):
    """Calls a function with the number of steps that are done, and of all."""

    def __init__(self, on_step: Callable[[int, int], None]):
        self._on_step = on_step

    def on_step_end(self, _args: Any, state: TrainerState, _control: Any, **_kwargs: Any) -> None:
        self._on_step(state.global_step, state.max_steps)
