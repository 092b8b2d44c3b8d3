"""Runs TRL's side: `GRPOTrainer` with a search tool. It needs TRL, but not this package.

python -m release.benchmarks.end_to_end.trl_side REQUEST.json RESULT.json

The request comes from `task_file.make_request`; the result has the same keys as that of `our_side.run`.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from release.benchmarks.end_to_end import dialect

PACKAGES = ("trl", "transformers", "accelerate", "torch")
#: Trajectories in a pass of the update.
ROWS_PER_PASS = 8


class Search:
    """The search tool, which runs in another process with this package (`search_process.py`)."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.num_calls = 0
        self.search("ready")
        self.num_calls = 0

    def search(self, query: str) -> str:
        """Searches for passages that answer a query, and shows the best ones.

        Args:
            query: What to search for, in a few words.
        """
        self.num_calls += 1
        self._process.stdin.write(json.dumps(query) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


class Trainer(GRPOTrainer):
    """TRL's trainer with a clock, and with turns that end after a tag instead of an end-of-sequence token."""

    #: Totals of the current iteration.
    sampling_s = 0.0
    num_tokens = 0

    def _generate_and_score_completions(self, inputs):
        begin = time.perf_counter()
        result = super()._generate_and_score_completions(inputs)
        self.sampling_s += time.perf_counter() - begin
        return result

    def _generate_single_turn(self, *args, **kwargs):
        rows, log_probs = super()._generate_single_turn(*args, **kwargs)
        # Shorter rows are padded, and TRL leaves the first padding token at their end.
        rows = [ids[:-1] if ids[-1] == self._tokenizer.pad_token_id else ids for ids in rows]
        self.num_tokens += sum(map(len, rows))
        return rows, log_probs


class Record(TrainerCallback):
    """Records each iteration."""

    def __init__(self, tool: Search, begin: float) -> None:
        self._tool = tool
        self.iterations: list[dict[str, float]] = []
        self.start_s = 0.0
        self.trainer: Trainer | None = None
        self._begin = begin
        self._rewards: list[float] = []

    def reward(self, completions, answer, **_) -> list[float]:
        self._rewards = [*map(dialect.reward, completions, answer)]
        return self._rewards

    def on_train_begin(self, *args, **kwargs):
        self.start_s = time.perf_counter() - self._begin
        self._begin = time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        seconds, sampling_s = time.perf_counter() - self._begin, self.trainer.sampling_s
        self.iterations.append(
            {
                "seconds": seconds,
                "sampling_s": sampling_s,
                "update_s": seconds - sampling_s,
                "sync_s": 0.0,
                "generated_tokens": self.trainer.num_tokens,
                "tool_calls": self._tool.num_calls,
                "reward": sum(self._rewards) / len(self._rewards),
                "accuracy": sum(value == dialect.RIGHT for value in self._rewards) / len(self._rewards),
            }
        )
        print(json.dumps(self.iterations[-1]), flush=True)
        self.trainer.sampling_s, self.trainer.num_tokens, self._tool.num_calls = 0.0, 0, 0
        self._begin = time.perf_counter()


def make_config(request: Mapping[str, Any], scratch: str) -> GRPOConfig:
    s = request["settings"]
    trajectories = s["questions_per_batch"] * s["num_rollouts"]
    rows = min(ROWS_PER_PASS, trajectories)
    return GRPOConfig(
        output_dir=scratch,
        max_steps=request["num_iterations"],
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=trajectories // rows,
        num_generations=s["num_rollouts"],
        max_completion_length=s["max_response_tokens"],
        max_tool_calling_iterations=s["max_tool_calls"],
        generation_kwargs=dialect.generation_kwargs(s["max_turn_tokens"], with_vllm=request["vllm"]),
        use_vllm=request["vllm"],
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.4,
        temperature=s["temperature"],
        loss_type="dapo",
        beta=0.0,
        epsilon=s["clip_low"],
        epsilon_high=s["clip_high"],
        learning_rate=s["lr"],
        lr_scheduler_type="constant",
        adam_beta1=s["adam_betas"][0],
        adam_beta2=s["adam_betas"][1],
        weight_decay=s["weight_decay"],
        max_grad_norm=s["grad_clip"],
        shuffle_dataset=False,
        seed=request["seed"],
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=not request["gpu"],
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    begin = time.perf_counter()
    torch.set_num_threads(request["num_threads"])
    tool = Search(request["search_command"])
    tokenizer = AutoTokenizer.from_pretrained(request["model"])
    dialect.set_up(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype="bfloat16")
    # `generate` needs a tokenizer for stop strings, and TRL passes none.
    model.generate = partial(model.generate, tokenizer=tokenizer)
    record = Record(tool, begin)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = record.trainer = Trainer(
            model,
            reward_funcs=record.reward,
            args=make_config(request, scratch),
            train_dataset=Dataset.from_list(request["questions"]),
            processing_class=tokenizer,
            callbacks=[record],
            tools=[tool.search],
        )
        trainer.train()
    tool.close()
    return {
        "start_s": record.start_s,
        "iterations": record.iterations,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "threads": torch.get_num_threads(),
        "setting": {"vllm": request["vllm"]},
    }


def main(request: str, result: str) -> None:
    Path(result).write_text(json.dumps(run(json.loads(Path(request).read_text())), indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
