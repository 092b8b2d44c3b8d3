"""ARPO on questions of mathematics and knowledge with the authors' settings, for models from 3B to 9B.

Training starts from a cold-started model: first fine-tune one of these on tool-use transcripts, then name it by
`--model`. The settings are the same for all; the GPUs and the memory for training differ:

    model                               GPUs          training
    Qwen/Qwen2.5-3B-Instruct            8 of 40 GB     49 GB
    Qwen/Qwen2.5-7B-Instruct            8 of 80 GB    122 GB
    meta-llama/Llama-3.1-8B-Instruct    8 of 80 GB    128 GB
    Qwen/Qwen3.5-4B                     8 of 80 GB     67 GB
    Qwen/Qwen3.5-9B                     8 of 80 GB    143 GB

    rllib-arpo cold-start --model Qwen/Qwen2.5-3B-Instruct --data transcripts.jsonl --output qwen3b \\
        --gradient-checkpointing --batch-size 1 --gradient-accumulation 16
    python tuned_examples/reasoning_arpo.py --model qwen3b --data train_10k.parquet --eval-data valid.parquet \\
        --index wiki.index --output qwen3b-arpo

`--algo` with GRPO, DAPO, ReinforcePlusPlus, AEPO or TreeGRPO runs a baseline, which keeps the settings of its own.
`--help` lists all options, and `authors.py` all differences to the authors' runs.

The cold start of the 3B model needs one GPU of 80 GB. Those of 7B and 8B need several GPUs (`accelerate launch
--num_processes 8 -m rllib_arpo cold-start --fsdp ...`) or a LoRA (`--lora-rank 64`).

Hardware: 8 GPUs of the size above. Each has a learner and an engine, which sleeps during updates. Training keeps 16
bytes a parameter (fp32 weights, gradients and two Adam moments), and FSDP2 gives each learner an eighth of them. If
learners and engines have GPUs of their own, half of the GPUs always wait, but an engine may have several:

    --num-learners 4 --num-gpus-per-learner 1 --num-env-runners 4 --num-gpus-per-env-runner 1

To try things out, one GPU is enough:

    --num-learners 0 --num-gpus-per-learner 0.5 --num-env-runners 1 --num-gpus-per-env-runner 0.5

`rllib-arpo doctor` computes these sums, and the seconds of an iteration:

    model   more options                                                            memory
    3B                                                                              69 of 80 GB
    7B      --lora 32 --gpu-memory-utilization 0.6                                  64 of 80 GB
    1.5B    --lora 32 --max-tokens-per-pass 8192 --gpu-memory-utilization 0.7       20 of 24 GB
    3B      --lora 32 --max-tokens-per-pass 8192 --gpu-memory-utilization 0.6       21 of 24 GB

Python programs run in bubblewrap, which needs user namespaces. In a container without them use `--python-backend
sandbox_fusion --python-url URL` or, if you can afford to lose the container, `--python-backend unsafe`.

Every 5 iterations the run writes a checkpoint and is evaluated on `--eval-data`. The folder `--output` keeps the last
two checkpoints and the best one, by the accuracy on `--eval-data` or by the mean reward. A run that fails goes on at
its last checkpoint, at most three times. If you kill it, the same command with `--resume` goes on. At the end the
folder `model` in `--output` has the model of the best checkpoint, for `from_pretrained` and vLLM.

A run stops at a mean reward of 0.6 per trajectory or after 156 iterations, which are two epochs of train_10k. Nobody
has measured this recipe: it needs 8 GPUs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # A script finds its neighbours as well.

from rllib_arpo import ARPOConfig
from rllib_arpo.recipes import run_recipe, run_terminal
from tuned_examples.authors import REASONING_ITERATIONS, authors_config, gpu_recipe_parser

parser = gpu_recipe_parser(stop_iters=REASONING_ITERATIONS)


def make_model(args) -> str:
    return args.model


def make_config(model: str, args) -> ARPOConfig:
    return authors_config(
        model, args, task="arpo_mix", max_prompt_tokens=1536, max_response_tokens=4096, max_tool_calls=3
    )


if __name__ == "__main__":
    args = parser.parse_args()
    experiment = f"reasoning-{Path(args.model).name}"
    with run_terminal(args, experiment):
        run_recipe(make_config(make_model(args), args), args, experiment, save_model=True)
