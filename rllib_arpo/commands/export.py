"""Turns a checkpoint into an ordinary Hugging Face model.

    rllib-arpo export CHECKPOINT OUTPUT --dtype bfloat16

Hugging Face and PEFT can also read the weights in a checkpoint: they are in the folder "huggingface", for a LoRA
"adapter", of `learner_group/learner/rl_module/default_policy/`. This command merges an adapter and converts the dtype.
"""

import argparse
from collections.abc import Sequence

from rllib_arpo.errors import CHECKS, command_errors
from rllib_arpo.policy.module_checkpoint import export_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="folder of the checkpoint")
    parser.add_argument("output", help="folder for the model")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: as trained")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    with command_errors((*CHECKS, OSError)):
        export_model(args.checkpoint, args.output, args.dtype)
    print(f"The model is in {args.output}.")
    return 0
