"""The benchmark against TRL: our side on a tiny model, TRL's where it is installed, and that both use the same tags."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from release.benchmarks.end_to_end import dialect
from release.benchmarks.end_to_end.__main__ import TARGETS, figures
from release.benchmarks.end_to_end.task_file import SIZES, make_request
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.protocols.protocol import CallRequest
from rllib_arpo.envs.protocols.tags import TagProtocol
from rllib_arpo.envs.tasks.trails import TrailsTask
from tests.helpers.models import byte_tokenizer
from tuned_examples.trails_models import trails_tokenizer

REPOSITORY = Path(__file__).resolve().parents[2]
TRL_PYTHON = REPOSITORY / ".venv-trl/bin/python"
CALL = {"type": "function", "function": {"name": "search", "arguments": {"query": "Korami"}}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "search", "content": "Korami: see Toluna"}
#: Of an iteration, on both sides.
ITERATION = {"seconds", "sampling_s", "update_s", "sync_s", "generated_tokens", "tool_calls", "reward", "accuracy"}


def run(tmp_path: Path, *arguments: str) -> dict:
    """What a tiny run writes."""
    results = tmp_path / "results.json"
    argv = ["-m", "release.benchmarks.end_to_end", "--json", str(results), "--tiny", *arguments]
    done = subprocess.run([sys.executable, *argv], cwd=REPOSITORY, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(results.read_text())


def check_side(detail: dict) -> None:
    means = {name: detail[f"{name}_mean"] for name in ITERATION}
    assert means["sampling_s"] + means["update_s"] + means["sync_s"] <= means["seconds"] + 1e-6
    assert means["generated_tokens"] >= 8 * 16


@pytest.mark.slow
def test_a_tiny_run_without_trl_writes_every_key(tmp_path):
    """GRPO's side is another name of an algorithm (test_both_sides_get_the_recipes_settings_and_questions)."""
    written = run(tmp_path, "--trl-python", str(tmp_path / "python"), "--sides", "trl", "arpo")
    check_side(written["iterations_per_hour_arpo_detail"])
    assert [key for key in TARGETS if written[key] is not None] == ["iterations_per_hour_arpo"]
    reason = f"TRL's environment is missing: there is no {tmp_path / 'python'}"
    assert written["speedup_arpo_detail"]["skipped"] == reason
    assert written["iterations_per_hour_grpo_detail"]["skipped"] == "there is no run of grpo"


@pytest.mark.slow
@pytest.mark.skipif(not TRL_PYTHON.exists(), reason="TRL's environment .venv-trl is missing")
def test_a_tiny_run_of_trl_writes_every_key(tmp_path):
    written = run(tmp_path, "--sides", "trl")
    check_side(written["iterations_per_hour_trl_detail"])
    assert written["iterations_per_hour_trl_detail"]["versions"]["trl"] == "1.16.0"


@pytest.mark.parametrize("tokenizer", [byte_tokenizer, trails_tokenizer], ids=["ChatML", "trails"])
def test_trl_renders_the_tokens_of_the_tag_protocol(tokenizer):
    question = TrailsTask().question(0)
    prompt = [{"role": role, "content": text} for role, text in question.messages]
    chat = Chat(tokenizer())
    protocol = TagProtocol()
    expected = protocol.prompt(chat, question).tolist()
    turn = chat.encode("<search> Korami </search>")
    result = protocol.response(chat, CallRequest("search", "Korami"), RESULT["content"], turn).tolist()

    taught = tokenizer()
    dialect.set_up(taught)

    def render(messages, **options):
        return taught.apply_chat_template(messages, tokenize=True, return_dict=False, **options)

    assert render(prompt, add_generation_prompt=True) == expected
    called = render([*prompt, CALLING])
    assert called == expected + turn.tolist()
    assert render([*prompt, CALLING, RESULT], add_generation_prompt=True) == called + result
    assert taught.eos_token_id not in called + result


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ([CALLING, RESULT, {"role": "assistant", "content": "<answer> \\boxed{42} </answer>"}], 1.0),
        ([CALLING, RESULT, {"role": "assistant", "content": "<answer> \\boxed{41} </answer>"}], 0.0),
        ([{"role": "assistant", "content": "So <answer>\\boxed{42}</answer>."}], 1.0),
        ([CALLING, RESULT, CALLING], -1.0),
        ([{"role": "assistant", "content": "<answer> \\boxed{42} \\boxed{41} </answer>"}], -1.0),
    ],
)
def test_the_reward_of_a_conversation(completion, expected):
    assert dialect.reward(completion, "42") == expected


def test_both_sides_get_the_recipes_settings_and_questions():
    size = replace(SIZES["full"], num_iterations=2)
    request = make_request(size, "trl", "model", 1)
    assert request["settings"] == {
        "questions_per_batch": 6, "num_rollouts": 8, "max_tool_calls": 7, "max_turn_tokens": 32,
        "max_response_tokens": 400, "temperature": 1.0, "lr": 4e-5, "grad_clip": 1.0, "adam_betas": (0.9, 0.95),
        "weight_decay": 0.0, "clip_low": 0.2, "clip_high": 0.2,
    }  # fmt: skip
    asked = [TrailsTask(seed=1).question(number) for number in range(12)]
    assert [row["answer"] for row in request["questions"]] == [question.answers[0] for question in asked]
    assert request["questions"][0]["prompt"][1] == {"role": "user", "content": asked[0].messages[1][1]}


def test_the_first_iteration_does_not_count():
    def side(*seconds: float) -> dict:
        rows = [dict.fromkeys(ITERATION, second) for second in seconds]
        return {"start_s": 1.0, "load_after": 0.0, "versions": {}, "threads": 2, "setting": {}, "iterations": rows}

    results = figures({"trl": side(100.0, 8.0, 10.0), "grpo": side(1.0, 2.0, 4.0)}, {})
    assert (results["iterations_per_hour_trl"], results["speedup_grpo"]) == (400.0, 3.0)
    assert results["speedup_arpo"] is None
    assert results.keys() == {*TARGETS, *(f"{key}_detail" for key in TARGETS)}
