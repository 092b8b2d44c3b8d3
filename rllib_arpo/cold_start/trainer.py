"""transformers' Trainer, which here also splits models among processes on CPUs."""

from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from transformers import Trainer


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
