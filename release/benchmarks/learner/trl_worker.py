"""TRL's side of `trl_speedup.py`, which runs where TRL is installed: its loss and the backward pass, no optimizer step.

    python trl_worker.py MODEL FOLDER ROWS REPEATS

FOLDER has rollouts.npz, and gets result.json and the gradients. ROWS are those of a micro-batch.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def make_trainer(model: str, scratch: Path, rows: int, num_rows: int) -> GRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(model)
    # The benchmark's models have no end of a sequence; nothing is generated here.
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    config = GRPOConfig(
        output_dir=str(scratch),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=num_rows // rows,
        num_generations=num_rows,
        loss_type="dapo",
        beta=0.0,
        temperature=1.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        model_init_kwargs={"dtype": "float32"},
    )
    trainer = GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "unused"}]),
        processing_class=tokenizer,
    )
    # The training loop sets it.
    trainer.current_gradient_accumulation_steps = num_rows // rows
    trainer.model.train()
    return trainer


def seconds_of(trainer: GRPOTrainer, inputs: dict[str, torch.Tensor], rows: int) -> float:
    """Of forward and backward, from no gradients to all gradients."""
    num_items = (inputs["completion_mask"] * inputs["tool_mask"]).sum()
    trainer.model.zero_grad(set_to_none=True)
    begin = time.perf_counter()
    for start in range(0, len(inputs["advantages"]), rows):
        batch = {name: array[start : start + rows] for name, array in inputs.items()}
        trainer._compute_loss(trainer.model, batch | {"num_items_in_batch": num_items}).backward()
    return time.perf_counter() - begin


def main(model: str, folder: Path, rows: int, repeats: int) -> None:
    inputs = {name: torch.from_numpy(array) for name, array in np.load(folder / "rollouts.npz").items()}
    trainer = make_trainer(model, folder, rows, len(inputs["advantages"]))
    seconds = [seconds_of(trainer, inputs, rows) for _ in range(repeats + 1)][1:]
    gradients = folder / "gradients.pt"
    torch.save({name: parameter.grad for name, parameter in trainer.model.named_parameters()}, gradients)
    versions = {name: importlib.metadata.version(name) for name in ("trl", "transformers", "torch")}
    result = {"seconds": seconds, "gradients": str(gradients), "versions": versions}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
