"""ARPO on mathematical and knowledge-intensive questions with the authors' settings, for models from 3B to 8B.

Starts from a cold-started model: fine-tune one of those below on tool-use transcripts first; `--model` decides which is
trained. All have the same settings. They differ in the GPUs and in the memory that training needs:

    model                               GPUs          training
    Qwen/Qwen2.5-3B-Instruct            8 of 40 GB     49 GB
    Qwen/Qwen2.5-7B-Instruct            8 of 80 GB    122 GB
    meta-llama/Llama-3.1-8B-Instruct    8 of 80 GB    128 GB

    rllib-arpo cold-start --model Qwen/Qwen2.5-3B-Instruct --data transcripts.jsonl --output qwen3b \\
        --gradient-checkpointing --batch-size 1 --gradient-accumulation 16
    python tuned_examples/reasoning_arpo.py --model qwen3b --data train_10k.parquet --eval-data valid.parquet \\
        --index wiki.index --output qwen3b-arpo

`--algo` with GRPO, DAPO, ReinforcePlusPlus, AEPO or TreeGRPO runs a baseline with the same settings but its own.
`--help` lists all options; `authors.py` lists what differs from the authors' runs.

The cold start of the 3B model needs one GPU of 80 GB. Those of 7B and 8B need several GPUs (`accelerate launch
--num_processes 8 -m rllib_arpo cold-start --fsdp ...`) or a LoRA (`--lora-rank 64`).

Hardware: 8 GPUs of the size above, four learners and four engines. Training holds 16 bytes a parameter (fp32 weights,
gradients and two Adam moments), of which FSDP2 gives each learner a quarter. The 3B model also fits on one GPU of
80 GB (59 GB by `rllib-arpo doctor`), which engine and learner share; the engine sleeps during updates (slow; for trying
things out):

    --num-learners 0 --num-gpus-per-learner 0.75 --num-env-runners 1 --num-gpus-per-env-runner 0.25

Python programs run in bubblewrap, which needs user namespaces. In a container without them, say `--python-backend
sandbox_fusion --python-url URL` or, if the container may be lost, `--python-backend unsafe`.

A run is checkpointed, and evaluated on `--eval-data`, every 5 iterations. The folder `--output` keeps the last two
checkpoints and the best one, by the accuracy on `--eval-data` or by the mean reward. A run that fails goes on at its
last checkpoint, three times at most; after a kill the same command with `--resume` goes on. At the end the best
checkpoint's model is in the folder `model` of `--output`, for `from_pretrained` and vLLM.

Stops at a mean reward of 0.6 per trajectory or after 156 iterations, two epochs of train_10k.
Not measured: needs 8 GPUs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # A script finds its neighbours as well.

from rllib_arpo import ARPOConfig
from rllib_arpo.recipes import run_recipe, run_terminal
from tuned_examples.authors import REASONING_ITERATIONS, authors_config, gpu_recipe_parser

parser = gpu_recipe_parser(num_learners=4, num_env_runners=4, stop_iters=REASONING_ITERATIONS)


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
