"""TRL's side of `trl_speedup.py`: answers requests on stdin, one line of JSON each. Runs where TRL is installed.

python trl_worker.py MODEL_FOLDER SCRATCH_FOLDER
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time

import numpy as np
import torch

PACKAGES = ("trl", "transformers", "accelerate", "datasets", "torch")


class Trainer:
    """A `GRPOTrainer` on given rollouts: its loss and the backward pass, in micro-batches; no optimizer step."""

    def __init__(self, model: str, scratch: str, rollouts: str, rows: int) -> None:
        self._inputs = {name: torch.from_numpy(array) for name, array in np.load(rollouts).items()}
        num_rows = len(self._inputs["advantages"])
        self._num_items = (self._inputs["completion_mask"] * self._inputs["tool_mask"]).sum()
        self._micro_batches = [slice(start, start + rows) for start in range(0, num_rows, rows)]
        self._trainer = _make_trainer(model, scratch, rows, num_rows)
        # The training loop sets it.
        self._trainer.current_gradient_accumulation_steps = len(self._micro_batches)
        self._trainer.model.train()

    def run(self) -> float:
        """Seconds of forward and backward, from no gradients to all gradients."""
        self._trainer.model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        for rows in self._micro_batches:
            batch = {name: array[rows] for name, array in self._inputs.items()}
            loss = self._trainer._compute_loss(self._trainer.model, batch | {"num_items_in_batch": self._num_items})
            loss.backward()
        return time.perf_counter() - start

    def save_gradients(self, file: str) -> None:
        torch.save({name: parameter.grad for name, parameter in self._trainer.model.named_parameters()}, file)


def _make_trainer(model: str, scratch: str, rows: int, num_rows: int):
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(model)
    # The benchmark's models have no end of a sequence; nothing is generated here.
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    config = GRPOConfig(
        output_dir=scratch,
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
    return GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "unused"}]),
        processing_class=tokenizer,
    )


def main(model: str, scratch: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Output of libraries must not mix with the answers.

    def answer(**result) -> None:
        answers.write(json.dumps(result) + "\n")
        answers.flush()

    answer(versions={name: importlib.metadata.version(name) for name in PACKAGES})
    trainer: Trainer | None = None
    for line in sys.stdin:
        match json.loads(line):
            case {"load": rollouts, "rows": rows}:
                trainer = None  # Its model is freed before the next one is loaded.
                trainer = Trainer(model, scratch, rollouts, rows)
                answer(loaded=rollouts)
            case {"run": True}:
                answer(seconds=trainer.run())
            case {"save": file}:
                trainer.save_gradients(file)
                answer(saved=file)
            case request:
                raise ValueError(f"unknown request {request}")


if __name__ == "__main__":
    main(*sys.argv[1:])
