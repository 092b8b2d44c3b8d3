"""Supervised fine-tuning of all weights or of a LoRA, by transformers' Trainer, on one device or on several.

Memory of a GPU by arithmetic, for P parameters (in brackets those of Qwen2.5-7B, 7.6 billion; 1 GB is 10^9 bytes):

- all weights: 4 bytes each for the weight, 4 for its gradient and 8 for Adam, all fp32 (122 GB), and on one GPU or
  without `fsdp` 2 for autocast's copy (15 GB);
- `fsdp` on N GPUs: 16 P / N (30 GB on four), and the layer and the head that compute, whole, with their gradients (4
  GB);
- `lora_rank`: 2 P for the frozen weights in bfloat16 (15 GB) and 16 bytes for each of the adapter's (2.6 GB at rank
  64); with `fsdp` both divided by N.

Activations come on top. `gradient_checkpointing` keeps only the input of each layer (at most 4 bytes * tokens * width),
and the logits are fp32, some three times: 4 bytes * tokens * vocabulary (2.5 GB each for one transcript of 4,096
tokens), so that `batch_size` is best 1. Each process first loads the whole model, fp32, into the host's memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_arpo.cold_start.examples import load_examples
from rllib_arpo.envs.protocols import PROTOCOLS
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.protocols.protocol import end_of_turn
from rllib_arpo.options.rules import (
    ANY,
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SWITCH,
    a_dict,
    at_least,
    one_of,
    optional,
)
from rllib_arpo.options.settings import check_settings, setting
from rllib_arpo.policy.checkpoint_names import causal_lm_config
from rllib_arpo.policy.compilation import fast_dtype

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel, TrainingArguments

    from rllib_arpo.policy.lora import Adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartSettings:
    """The settings of `train`."""

    model: str = setting(MISSING, ANY, "Hugging Face id or folder of a causal LM", required=True)
    data: str = setting(MISSING, ANY, "transcripts, .jsonl or .parquet", required=True)
    output: str = setting(MISSING, ANY, "folder for the fine-tuned model; must be empty or new", required=True)
    epochs: float = setting(3.0, POSITIVE, "how often each transcript is read")
    lr: float = setting(7e-6, POSITIVE,
        "peak learning rate; it falls along a cosine. A LoRA usually takes ten times more than all weights "
        "do")  # fmt: skip
    warmup: float = setting(0.1, NOT_NEGATIVE, "steps of warm-up; below 1: that share of all steps")
    weight_decay: float = setting(0.0, NOT_NEGATIVE, "AdamW's")
    batch_size: int = setting(4, at_least(1), "transcripts per device and pass")
    gradient_accumulation: int = setting(4, at_least(1), "passes per optimizer step")
    max_length: int = setting(4096, at_least(1), "longer transcripts (in tokens) are left out")
    gradient_checkpointing: bool = setting(False, SWITCH, "less memory, about a third slower")
    logging_steps: int = setting(10, at_least(1), "steps between logged losses")
    report_to: str = setting("none", one_of("none", "mlflow"), "none or mlflow", choices=("none", "mlflow"))
    seed: int = setting(0, COUNT, "of the order of the transcripts")
    # Not in the repr, which `mark` (tuned_examples/small_models.py) hashes: models that exist keep their names.
    lora_rank: int | None = setting(None, optional(at_least(1)),
        "trains a LoRA of this rank in all linear layers, with alpha twice the rank, instead of all weights; the "
        "output folder has the merged weights", repr=False)  # fmt: skip
    fsdp: bool = setting(False, SWITCH,
        "splits weights, gradients and Adam over the processes of `accelerate launch` (FSDP2)", repr=False)  # fmt: skip
    dtype: str | None = setting(None, optional(one_of("bfloat16", "float32")),
        "of matrix products, of gradients that FSDP sums, and of the frozen weights of a LoRA; trained weights are "
        "float32. Default: bfloat16 where it is fast", choices=("bfloat16", "float32"), repr=False)  # fmt: skip
    protocol: str | None = setting(None, optional(one_of(*PROTOCOLS)),
        "the run's, in which it calls tools (env_config['protocol']); rows with tools need it",
        choices=tuple(PROTOCOLS), repr=False)  # fmt: skip
    chat_template_kwargs: Mapping[str, Any] = setting(dict, a_dict(),
        "the run's (env_config['chat_template_kwargs']), a JSON object", type=json.loads, repr=False)  # fmt: skip

    def check(self) -> None:
        """Compares the settings with each other and with the processes, packages and the model that are there.

        Raises:
            ValueError: one is wrong, they contradict each other, or there is no such model.
            ImportError: a LoRA needs PEFT, which is not installed.
        """
        check_settings(self)
        if self.lora_rank is not None:
            from rllib_arpo.policy.lora import lora_config

            lora_config(_lora(self))
        if self.fsdp and int(os.environ.get("WORLD_SIZE", "1")) < 2:
            raise ValueError(
                "fsdp splits the model over processes, and there is one: start the command by `accelerate launch "
                "--num_processes N -m rllib_arpo cold-start` or by torchrun."
            )
        causal_lm_config(self.model)


def train(settings: ColdStartSettings) -> list[float]:
    """Fine-tunes a model; returns the logged training losses.

    Raises:
        OSError: the output is not an empty folder, or cannot be made.
        DataError: the data cannot be read.
        ValueError, ImportError: see `ColdStartSettings.check`.
    """
    settings.check()
    output = Path(settings.output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} is not an empty folder.")

    from transformers import AutoTokenizer, DataCollatorForSeq2Seq

    from rllib_arpo.cold_start.trainer import ColdStartTrainer

    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    kwargs = settings.chat_template_kwargs
    examples = load_examples(tokenizer, settings.data, settings.max_length, settings.protocol, kwargs)
    output.mkdir(parents=True, exist_ok=True)
    model, adapter = _load(settings)
    # Another object, since the model's tokenizer is saved as it was.
    padding = AutoTokenizer.from_pretrained(settings.model, padding_side="right")
    padding.pad_token = padding.pad_token or padding.eos_token
    trainer = ColdStartTrainer(
        model=model,
        args=_training_arguments(settings),
        train_dataset=examples,
        data_collator=DataCollatorForSeq2Seq(padding),
        processing_class=tokenizer,
    )
    _end_turns(model, tokenizer)
    trainer.train()
    _save(settings, model, adapter)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def _end_turns(model: PreTrainedModel, tokenizer: Any) -> None:
    """Lets the model stop at the token that ends the template's turns, which it learns to write."""
    end, generation = end_of_turn(Chat(tokenizer)), model.generation_config
    known = generation.eos_token_id if isinstance(generation.eos_token_id, list) else [generation.eos_token_id]
    if end and (end_id := tokenizer.convert_tokens_to_ids(end)) not in known:
        generation.eos_token_id = [*filter(lambda token: token is not None, known), end_id]


def is_first_process() -> bool:
    """Whether this process is the first of those that train together; the only one prints and writes."""
    return os.environ.get("RANK", "0") == "0"


def _dtype(settings: ColdStartSettings) -> str:
    return settings.dtype or fast_dtype()


def _lora(settings: ColdStartSettings) -> dict[str, Any]:
    rank = settings.lora_rank or 0
    return {"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"}


def _load(settings: ColdStartSettings) -> tuple[PreTrainedModel, Adapter | None]:
    """The model that is trained, and the adapter in it, if only that is trained."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32)
    if settings.lora_rank is None:
        return model, None
    from rllib_arpo.policy.causal_lm import round_weights
    from rllib_arpo.policy.lora import Adapter

    round_weights(model, getattr(torch, _dtype(settings)))
    return model, Adapter(model, _lora(settings))


def _training_arguments(settings: ColdStartSettings) -> TrainingArguments:
    import torch
    from transformers import TrainingArguments

    arguments = TrainingArguments(
        output_dir=settings.output,
        num_train_epochs=settings.epochs,
        learning_rate=settings.lr,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation,
        # Not FSDP's own checkpointing, whose wrappers hide the layers from PEFT.
        gradient_checkpointing=settings.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=not torch.cuda.is_available(),
        bf16=_dtype(settings) == "bfloat16",
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_steps=settings.logging_steps,
        save_strategy="no",
        report_to=settings.report_to,
        remove_unused_columns=False,
        seed=settings.seed,
        fsdp=settings.fsdp,
    )
    if arguments.n_gpu > 1:
        # The Trainer would take all of them by `DataParallel`: with larger batches, and without autocast.
        print(f"One process uses one of {arguments.n_gpu} GPUs. `accelerate launch` uses all.")
        arguments._n_gpu = 1
    return arguments


def _save(settings: ColdStartSettings, model: PreTrainedModel, adapter: Adapter | None) -> None:
    """Writes the whole model; all processes take part, since each may hold a part, and the first one writes."""
    from rllib_arpo.policy.lora import MergedWeights
    from rllib_arpo.policy.module_checkpoint import write_model
    from rllib_arpo.policy.sharded_state import whole_array

    trained = model.state_dict(keep_vars=True) if adapter is None else adapter.tensors()
    # Tied weights are one array.
    distinct = {id(tensor): tensor for tensor in trained.values()}
    arrays = {key: whole_array(tensor) for key, tensor in distinct.items()}
    found = {name: arrays[id(tensor)] for name, tensor in trained.items()}
    if not is_first_process():
        return
    # The first process has all of them.
    weights: Mapping[str, np.ndarray] = {name: array for name, array in found.items() if array is not None}
    if adapter is not None:
        weights = MergedWeights(settings.model, _lora(settings), "float32")(weights)
    # Its configurations have the tokenizer's end of a text, from the Trainer, and the template's end of a turn.
    write_model(settings.output, weights, settings.model, like=model)
