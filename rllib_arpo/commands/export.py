"""Makes an ordinary Hugging Face model from a checkpoint.

    rllib-arpo export CHECKPOINT OUTPUT --dtype bfloat16

A checkpoint holds the weights as Hugging Face and PEFT read them: `learner_group/learner/rl_module/default_policy/`
has a folder "huggingface" or, of a LoRA, "adapter". This command merges an adapter into its base, and changes the type.
"""

import argparse
from collections.abc import Sequence

from rllib_arpo.errors import command_errors
from rllib_arpo.policy.module_checkpoint import export_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="folder of an algorithm's checkpoint")
    parser.add_argument("output", help="folder for the model")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: as trained")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    with command_errors((FileNotFoundError, ValueError)):
        export_model(args.checkpoint, args.output, args.dtype)
    print(f"The model is in {args.output}.")
    return 0
