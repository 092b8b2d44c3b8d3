"""The entropy command against a slow loop of Hugging Face forward passes, and what it refuses."""

import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from rllib_arpo import commands
from rllib_arpo.commands.entropy import SUMMARY
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.evaluation import runner
from rllib_arpo.record.read import questions, record_files
from tests.evaluation.conftest import recorded, scripted_command
from tests.helpers.models import tiny_model

NUM_STEPS = 150


def calling_model(folder: Path, task: str) -> str:
    """Trains a tiny Llama for some seconds on "call, result, answer" after the task's first ten prompts.

    It keeps to the format mostly, and is unsure which digits to write.
    """
    from transformers import AutoModelForCausalLM

    path = tiny_model(folder, seed=1)
    num_threads = torch.get_num_threads()
    # Its layers are too small to share among threads.
    torch.set_num_threads(1)
    env = ToolEnv({"model_name_or_path": path, "task": task})
    generator = torch.Generator().manual_seed(0)
    rows = [row for number in range(10) for row in _transcripts(env, number, generator)]
    width = max(map(len, rows))
    padded = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(NUM_STEPS):
        batch = padded[torch.randint(len(padded), (8,), generator=generator)]
        mask = batch >= 0
        loss = model(input_ids=batch.clamp(min=0), attention_mask=mask.long(), labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(num_threads)
    model.save_pretrained(path)
    return path


def _transcripts(env: ToolEnv, number: int, generator: torch.Generator) -> list[list[int]]:
    observations, _ = env.reset(options={"question": number})
    prompt, rows = observations["0"].tolist(), []
    for _ in range(4):
        a, b = torch.randint(2, 10, (2,), generator=generator).tolist()
        call = f"<python> print({a} * {b}) </python>"
        result = f"\n<result>\n{a * b}\n</result>\n"
        reply = f"{call}{result}<answer> \\boxed{{{a * b}}} </answer>"
        rows.append([*prompt, *env.tokenizer.encode(reply, add_special_tokens=False), env.tokenizer.eos_token_id])
    return rows


TASK = "tests.helpers.own_task:BriefSquaresTask"
WINDOW, TEMPERATURE, NUM_QUESTIONS, NUM_SAMPLES = 6, 0.9, 4, 3


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(model, folder) of a command that has run with vLLM."""
    model = calling_model(tmp_path_factory.mktemp("calling"), TASK)
    folder = tmp_path_factory.mktemp("entropy")
    options = {
        "model": model, "tasks": TASK, "output": folder, "window": WINDOW, "temperature": TEMPERATURE,
        "limit": NUM_QUESTIONS, "samples": NUM_SAMPLES, "max-response-tokens": 110, "max-turn-tokens": 40,
        "max-context-tokens": 256, "max-tool-calls": 2, "dtype": "float32", "num-threads": 1,
        "engine-kwargs": '{"kv_cache_memory_bytes": 8388608}',
    }  # fmt: skip
    assert commands.main(["entropy", *(part for name, v in options.items() for part in (f"--{name}", str(v)))]) == 0
    return model, folder


@pytest.fixture(scope="module")
def slow(made) -> list[dict]:
    """The rows of the table, with `slow`: the entropies of the sampled tokens, a forward pass for every token."""
    from transformers import AutoModelForCausalLM

    model_folder, folder = made
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    rows = []
    for question in recorded(folder):
        for sample in question.tree.trajectories:
            prefix = question.tree.prompt.tolist()
            for placed in question.turns_of(sample):
                turn, slow = placed.turn, []
                for token in turn.token_ids.tolist():
                    with torch.no_grad():
                        logits = model(torch.tensor([prefix])).logits[0, -1].double() / TEMPERATURE
                    p = torch.softmax(logits, dim=-1).tolist()
                    slow.append(-sum(q * math.log(q) for q in p if q > 0))
                    prefix.append(token)
                prefix += turn.observation.tolist()
                own = {"number": question.facts.number, "agent_id": sample.agent_id, "depth": placed.depth}
                rows.append({**own, "after_tool": placed.after_tool, "entropies": turn.entropies, "slow": slow})
    return rows


def mean_over_questions(values: list[tuple[int, float]]) -> float:
    """The mean over questions of each question's mean of (question, value)."""
    by_question = defaultdict(list)
    for question, value in values:
        by_question[question].append(value)
    return sum(sum(v) / len(v) for v in by_question.values()) / len(by_question)


@pytest.mark.slow
def test_entropies_curves_rises_and_rules_are_those_of_the_slow_loop(made, slow):
    model, folder = made
    assert len({(row["number"], row["agent_id"]) for row in slow}) == NUM_QUESTIONS * NUM_SAMPLES
    assert {row["after_tool"] for row in slow} == {None, "python"}
    for row in slow:
        np.testing.assert_allclose(row["entropies"], row["slow"], atol=1e-4)

    summary = json.loads((folder / SUMMARY).read_text())
    (task,), settings = summary["tasks"], summary["settings"]
    later = [row for row in slow if row["depth"]]
    assert len(later) >= 6
    curve = task["curves"]["after tools"]
    expected = [
        mean_over_questions([(row["number"], row["slow"][i]) for row in later if len(row["slow"]) > i])
        for i in range(max(len(row["slow"]) for row in later))
    ]
    np.testing.assert_allclose(curve["mean"], expected, atol=1e-4)
    assert curve["turns"] == [sum(len(row["slow"]) > i for row in later) for i in range(len(expected))]

    initial = {(row["number"], row["agent_id"]): row["slow"][:WINDOW] for row in slow if row["depth"] == 0}
    rises = []
    for row in later:
        pairs = zip(row["slow"][:WINDOW], initial[row["number"], row["agent_id"]], strict=False)
        # As the authors' code has it.
        rises.append((row["number"], sum(after - first for after, first in pairs) / math.log(259)))
    found = task["rises"]["after tools"]
    assert found["nodes"] == len(rises)
    assert found["delta"]["value"] == pytest.approx(mean_over_questions(rises), abs=1e-4)
    share = mean_over_questions([(question, float(rise > 0)) for question, rise in rises])
    assert found["share_positive"]["value"] == task["rules"]["threshold"]["value"] == pytest.approx(share)
    # P = alpha + beta dH.
    alpha, beta = settings["branch_base_probability"], settings["branch_entropy_weight"]
    chances = [(question, min(max(alpha + beta * rise, 0.0), 1.0)) for question, rise in rises]
    assert task["rules"]["probability"]["value"] == pytest.approx(mean_over_questions(chances), abs=1e-4)

    name = f"entropy-{TASK.replace(':', '.')}.png"
    assert {path.name for path in folder.iterdir() if path.is_file()} == {name, SUMMARY}
    assert (folder / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (summary["model"], settings["entropy_window"]) == (model, WINDOW)


def entropy_command(model_folder, output, **options) -> list[str]:
    """With the scripted engine, whose model now and then calls the tool."""
    return ["entropy", *scripted_command(model_folder, output, **options)]


def test_two_tasks_with_the_scripted_engine(model_folder, tmp_path, capsys):
    config = json.dumps({"arithmetic": {"num_test_questions": 12}, "trails": {}})
    options = {"tasks": "arithmetic,trails", "limit": "5", "samples": "2", "env_config": config}
    assert commands.main(entropy_command(model_folder, tmp_path / "out", **options)) == 0
    printed = capsys.readouterr().out
    assert "arithmetic: 5 questions, 10 samples" in printed and "trails: 5 questions, 10 samples" in printed
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {
        "entropy-arithmetic.png",
        "entropy-trails.png",
    }
    turns = [
        placed.turn for file in record_files(tmp_path / "out") for found in questions(file) for placed in found.turns()
    ]
    assert turns and all(len(turn.entropies) == len(turn.token_ids) for turn in turns)


@pytest.mark.slow
def test_the_same_command_asks_nothing_again_and_other_settings_are_refused(
    model_folder, tmp_path, monkeypatch, capsys
):
    command = entropy_command(model_folder, tmp_path / "out", limit="2")
    assert commands.main(command) == 0
    monkeypatch.setattr(runner, "make_engine", lambda *_args: pytest.fail("an engine was started"))
    assert commands.main(command) == 0
    capsys.readouterr()
    assert commands.main([*command, "--samples", "2"]) == 2
    assert (
        "tools arithmetic with samples=4, not 2: use the old setting, or name another --output."
        in capsys.readouterr().err
    )


def test_a_model_that_calls_no_tool(model_folder, tmp_path, capsys):
    engine = json.dumps({"vocab_size": 259, "replies": [[65, 66]]})
    assert commands.main(entropy_command(model_folder, tmp_path, engine_kwargs=engine, limit="3")) == 0
    assert "No turn followed a tool response" in capsys.readouterr().out
    (task,) = json.loads((tmp_path / SUMMARY).read_text())["tasks"]
    assert (task["nodes"], list(task["curves"])) == (0, ["start"])


@pytest.mark.parametrize(("option", "value", "message"), [
    ("--branch-width", "0", "branch_width=0: must be an integer >= 1."),
    ("--branch-threshold", "nan", "branch_threshold=nan: must be a finite number."),
    ("--branch-base-probability", "2", "branch_base_probability=2.0: must be a number in [0, 1]."),
])  # fmt: skip
def test_a_wrong_rule_is_said_before_an_engine_starts(
    model_folder, tmp_path, monkeypatch, capsys, option, value, message
):
    monkeypatch.setattr(runner, "make_engine", lambda *_args: pytest.fail("an engine was started"))
    assert commands.main([*entropy_command(model_folder, tmp_path / "out"), option, value]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
