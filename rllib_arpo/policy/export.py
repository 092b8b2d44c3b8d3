"""Makes an ordinary Hugging Face model from an algorithm's checkpoint."""

from __future__ import annotations

from pathlib import Path

from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID

from rllib_arpo.files import check_all_files
from rllib_arpo.policy.huggingface import write_generation_config, write_tokenizer
from rllib_arpo.policy.module_checkpoint import ADAPTER, HUGGINGFACE

#: The module's folder within an algorithm's checkpoint.
MODULE = Path(COMPONENT_LEARNER_GROUP, COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID)


def export_model(checkpoint: str | Path, folder: str | Path, dtype: str | None = None) -> None:
    """Writes the model of a checkpoint for `AutoModelForCausalLM.from_pretrained`, with its tokenizer.

    A LoRA is merged into the base as it is on disk; in training the base was rounded to the compute dtype.

    Args:
        checkpoint: the folder of an algorithm's checkpoint, on this machine.
        folder: created if it does not exist.
        dtype: of the weights in it ("bfloat16"); None: as trained, float32.

    Raises:
        ValueError: a file of the checkpoint is missing, or is not the one that was saved.
    """
    import torch
    from transformers import AutoModelForCausalLM

    check_all_files(checkpoint)
    module = Path(checkpoint) / MODULE
    source, adapter = module / HUGGINGFACE, module / ADAPTER
    if adapter.is_dir():
        from peft import PeftConfig, PeftModel

        source = PeftConfig.from_pretrained(adapter).base_model_name_or_path
        base = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, adapter).merge_and_unload()
    else:
        model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    if dtype is not None:
        model = model.to(getattr(torch, dtype))
    model.save_pretrained(folder)
    write_generation_config(folder, source)
    write_tokenizer(folder, source)
