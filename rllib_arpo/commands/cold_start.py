"""Fine-tunes a model on tool-use transcripts, before reinforcement learning.

    rllib-arpo cold-start --model Qwen/Qwen2.5-3B-Instruct --data transcripts.jsonl --output DIR

`rllib_arpo/cold_start/` says what a row of the data is, and how much memory a model takes. On several GPUs:

    accelerate launch --num_processes 8 -m rllib_arpo cold-start --fsdp --gradient-checkpointing ...
"""

import argparse
import dataclasses
from collections.abc import Sequence

from rllib_arpo.cold_start import ColdStartSettings, is_first_process, train
from rllib_arpo.envs.errors import DataError
from rllib_arpo.errors import command_errors
from rllib_arpo.options.settings import add_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, ColdStartSettings)


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
