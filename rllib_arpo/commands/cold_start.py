"""Fine-tunes a model on tool-use transcripts, before reinforcement learning.

    rllib-arpo cold-start --model Qwen/Qwen2.5-3B-Instruct --data transcripts.jsonl --output DIR

or on the best trajectories of a run's record (rejection sampling):

    rllib-arpo cold-start --model MODEL --data RUN/trees --best 1 --min-reward 1 --output DIR

`rllib_arpo/cold_start/` says what a row of the data is, and how much memory a model takes. On several GPUs:

    accelerate launch --num_processes 8 -m rllib_arpo cold-start --fsdp --gradient-checkpointing ...
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from rllib_arpo.cold_start import ColdStartSettings, is_first_process, train
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.protocols import PROTOCOLS
from rllib_arpo.errors import command_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(ColdStartSettings)}
    defaults["chat_template_kwargs"] = {}

    def add(name: str, kind: Callable[[str], Any] = str, **kwargs: Any) -> None:
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=defaults[name], **kwargs)

    parser.add_argument("--model", required=True, help="Hugging Face id or folder of a causal LM")
    parser.add_argument("--data", required=True, help="transcripts, .jsonl or .parquet; with --best a record")
    parser.add_argument("--output", required=True, help="folder for the fine-tuned model; must be empty or new")
    add("best", int, help="of the record of a run, so many trajectories of each question, by their rewards")
    add("min_reward", float, help="leaves out recorded trajectories that earned less")
    add("epochs", float)
    add("lr", float, help="peak learning rate; it falls along a cosine")
    add("warmup", float, help="steps of warm-up; below 1: that share of all steps")
    add("weight_decay", float)
    add("batch_size", int, help="transcripts per device and pass")
    add("gradient_accumulation", int, help="passes per optimizer step")
    add("max_length", int, help="longer transcripts (in tokens) are left out")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="less memory, about a third slower")
    add("lora_rank", int, help="trains a LoRA of this rank instead of all weights; the folder has the merged weights")
    parser.add_argument(
        "--fsdp", action="store_true", help="splits the model over the processes of `accelerate launch`"
    )
    add("dtype", choices=("bfloat16", "float32"), help="of matrix products; default: bfloat16 where it is fast")
    add("logging_steps", int)
    add("report_to", choices=("none", "mlflow"))
    add("seed", int)
    add("protocol", choices=tuple(PROTOCOLS), help="the run's, in which it calls tools; rows with tools need it")
    add("chat_template_kwargs", json.loads, help="the run's, a JSON object")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    settings = ColdStartSettings(**{f.name: getattr(args, f.name) for f in dataclasses.fields(ColdStartSettings)})
    with command_errors():
        settings.check()
    with command_errors((OSError, DataError)):
        losses = train(settings)
    if not is_first_process():
        return 0
    if losses:
        print(f"Training loss from {losses[0]:.3f} to {losses[-1]:.3f}.")
    print(f"The fine-tuned model is in {args.output}.")
    return 0
