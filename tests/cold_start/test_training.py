"""The loss falls, and the tuned model is an ordinary folder, whatever was trained in however many processes."""

import json
import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest
import ray
import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

from rllib_arpo.cold_start import training
from rllib_arpo.cold_start.examples import tokenize_transcript
from rllib_arpo.cold_start.transcripts import Transcript
from rllib_arpo.commands import run_command
from rllib_arpo.envs.protocols.prompts import Chat
from tests.helpers.models import byte_tokenizer, tiny_model
from tests.helpers.other_python import free_port

TRANSCRIPT = [
    {"role": "user", "content": "What is a?"},
    {"role": "assistant", "content": "<search>a</search><result> 42 </result><answer>\\boxed{42}</answer>"},
]


def write(path, transcripts) -> str:
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in transcripts))
    return str(path)


def weights(folder) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def test_one_process_takes_one_of_several_gpus(tmp_path, monkeypatch, capsys):
    """The Trainer's `DataParallel` would make larger batches, and compute without autocast."""
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda arguments: vars(arguments).get("_n_gpu", 8)))
    monkeypatch.setattr(TrainingArguments, "_setup_devices", torch.device("cpu"))
    settings = training.ColdStartSettings(model="m", data="d", output=str(tmp_path))
    assert training._training_arguments(settings).n_gpu == 1
    assert capsys.readouterr().out == "One process uses one of 8 GPUs. `accelerate launch` uses all.\n"


def test_the_loss_falls_and_the_output_is_a_model_folder(tmp_path, capsys):
    model = tiny_model(tmp_path / "model", "llama")
    # It contradicts itself, so transformers would not save it.
    contradictory = {"do_sample": False, "temperature": 0.6, "eos_token_id": [258, 256]}
    Path(model, "generation_config.json").write_text(json.dumps(contradictory))
    data = write(tmp_path / "transcripts.jsonl", [TRANSCRIPT] * 4)
    argv = ["--model", model, "--data", data, "--output", str(tmp_path / "tuned"), "--epochs", "30"]
    argv += ["--lr", "1e-2", "--batch-size", "4", "--gradient-accumulation", "1", "--logging-steps", "1"]
    assert run_command("cold-start", argv) == 0
    first, last = re.search(r"loss from (\S+) to (\S+)\.\n", capsys.readouterr().out).groups()
    assert float(last) < 0.5 * float(first)

    written = json.loads((tmp_path / "tuned" / "generation_config.json").read_text())
    assert {key: written[key] for key in contradictory} == contradictory
    tuned = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned")
    assert tuned.state_dict()["lm_head.weight"].dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tuned")
    assert tokenizer.chat_template == byte_tokenizer().chat_template
    example = {
        name: torch.tensor([ids]) for name, ids in tokenize_transcript(Chat(tokenizer), Transcript(TRANSCRIPT)).items()
    }
    assert tuned(**example).loss.item() < 0.5 * float(first)

    assert run_command("cold-start", argv) == 2
    assert capsys.readouterr().err.endswith(f"error: {tmp_path}/tuned is not an empty folder.\n")
    assert run_command("cold-start", [*argv, "--output", data]) == 2
    assert capsys.readouterr().err == f"error: {data} is not an empty folder.\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--fsdp"], "fsdp splits the model over processes, and there is one: start the command by `accelerate launch"),
        (["--lora-rank", "0"], "lora_rank=0: must be an integer >= 1, or None."),
        (["--epochs", "0"], "epochs=0.0: must be a finite number > 0."),
        ([], "model_name_or_path='./none': no such folder."),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_read(capsys, arguments, complaint):
    assert run_command("cold-start", ["--model", "./none", "--data", "none", "--output", "none", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {complaint}")


@ray.remote(num_cpus=1)
class Process:
    """One of two that train together, as torchrun and `accelerate launch` start them."""

    def __init__(self, rank: int, port: int):
        torch.set_num_threads(1)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        os.environ |= {key: str(value) for key, value in place.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}

    def run(self, argv: list[str]) -> float:
        """Runs the command; returns the share of the trained numbers that this process held."""
        with patch.object(training, "_save", wraps=training._save) as save:
            assert run_command("cold-start", argv) == 0
        trained = [parameter for parameter in save.call_args.args[1].parameters() if parameter.requires_grad]
        assert all(isinstance(parameter, DTensor) for parameter in trained)
        return sum(p.to_local().numel() for p in trained) / sum(p.numel() for p in trained)


@pytest.fixture(scope="module")
def processes(ray_cluster) -> list:
    port = free_port()
    return [Process.remote(rank, port) for rank in range(2)]


@pytest.mark.parametrize(
    ("arguments", "tolerance"),
    [(["--dtype", "float32"], 1e-4), (["--dtype", "bfloat16", "--lora-rank", "4", "--gradient-checkpointing"], 0.1)],
)
def test_two_processes_with_fsdp_train_what_one_does(processes, tmp_path, arguments, tolerance):
    """Accelerate deals out batches in turn: two processes with two passes read what one reads in four."""
    model = tiny_model(tmp_path / "model", "llama")
    answers = [f"<search>{'a' * n}</search>\n<result> 42 </result>\n<answer>{n}</answer>" for n in range(8)]
    data = write(tmp_path / "data.jsonl", [[TRANSCRIPT[0], {"role": "assistant", "content": a}] for a in answers])
    argv = [*arguments, "--model", model, "--data", data, "--epochs", "2", "--lr", "1e-3", "--batch-size", "1"]

    one = [*argv, "--output", str(tmp_path / "one"), "--gradient-accumulation", "4"]
    assert run_command("cold-start", one) == 0
    two = [*argv, "--output", str(tmp_path / "two"), "--gradient-accumulation", "2", "--fsdp"]
    shares = ray.get([process.run.remote(two) for process in processes])

    assert shares == [pytest.approx(0.5, abs=0.01)] * 2 and sum(shares) == 1
    before, alone, together = (weights(tmp_path / folder) for folder in ("model", "one", "two"))
    assert before.keys() == alone.keys() == together.keys()
    # A LoRA is merged into the linear layers.
    fixed = [name for name, weight in before.items() if torch.equal(weight, together[name])]
    assert ("model.embed_tokens.weight" in fixed) == ("--lora-rank" in arguments)
    assert "model.layers.0.mlp.up_proj.weight" not in fixed
    change = distance(alone, before)
    assert change > 0.01
    assert distance(together, alone) < tolerance * change


def distance(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    return sum((weight - others[name]).square().sum() for name, weight in some.items()).sqrt().item()
