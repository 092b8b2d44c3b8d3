"""Worlds of real servers, and of an interpreter with packages that the locks exclude: two iterations with forks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rllib_arpo.envs.worlds.session import Forking
from rllib_arpo.envs.worlds.verifiers import write_rows
from tests.helpers.configs import small_config
from tests.helpers.models import byte_tokenizer
from tests.helpers.other_python import free_port, python_with, running

REPOSITORY = str(Path(__file__).resolve().parents[2])
pytestmark = [pytest.mark.packages, pytest.mark.timeout(1800)]


@pytest.fixture
def trains(ray_cluster, model_folder, built, monkeypatch):
    """trains(env_config, replies) -> the ways in which worlds forked in two iterations, and what the tools answered."""
    ways, way = set(), Forking.way

    def noted(forking, world):
        ways.add(way(forking, world))
        return way(forking, world)

    def run(env_config, replies):
        monkeypatch.setattr(Forking, "way", noted)
        tokenizer = byte_tokenizer()
        replies = [[*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id] for reply in replies]
        config = small_config(model_folder, vocab_size=len(tokenizer), replies=replies)
        config.environment("ToolEnv-v0", env_config=env_config)
        config.language_model(max_context_tokens=2048)
        config.adaptive_rollout(branching="always", entropy_window=2, max_tool_calls=4, max_response_tokens=1200)
        config.adaptive_rollout(max_turn_tokens=64)
        algorithm, statuses = built(config), set()
        for _ in range(2):
            result = algorithm.train()["env_runners"]
            assert result["forks_refused"] == 0
            assert result["stop"].get("broken_tool", 0.0) == 0.0
            assert result["forks_per_question"] > 0
            statuses |= {call.status for sampled in algorithm.last_sampled for call in sampled.stats.tool_calls}
        return ways, {str(status) for status in statuses}

    return run


@pytest.fixture
def openenv():
    return python_with("openenv-0.10", "openenv==0.10.0")


@pytest.mark.parametrize("tools", [False, True])
def test_openenv(trains, openenv, tools):
    port = free_port()
    command = [openenv, "-m", "uvicorn", "--app-dir", REPOSITORY, "--port", str(port), "tests.helpers.openenv_app:app"]
    with running(*command, port=port, **({"TOOLS": "1"} if tools else {})):
        world = {"url": f"http://127.0.0.1:{port}", "tools": tools, "read": "number"}
        replies = ['<add> {"number": 1} </add>', '<add> {"number": 2} </add>'] if tools else ["1", "2"]
        assert trains({"world": {"openenv": world}}, replies) == ({"replay"}, {"ok"})


def test_nemo_gym(trains, tmp_path):
    """Version 0.4.0 says that it needs Python 3.12; its servers run with 3.11 too."""
    python = python_with("nemo-gym-0.4", "--ignore-requires-python", "nemo-gym==0.4.0")
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    asked = {"input": "Add.", "tools": [{"type": "function", "name": "add", "parameters": schema, "strict": True}]}
    rows, port = tmp_path / "rows.jsonl", free_port()
    rows.write_text(json.dumps({"responses_create_params": asked, "initial_count": 3, "expected_count": 6}))
    command = [python, "-m", "uvicorn", "--app-dir", REPOSITORY, "--port", str(port), "tests.helpers.nemo_gym_app:app"]
    with running(*command, port=port):
        world = {"nemo_gym": {"url": f"http://127.0.0.1:{port}", "tools": str(rows)}}
        replies = ['<add> {"count": 1} </add>', '<add> {"count": 2} </add>', "That is all."]
        env_config = {"task": "nemo_gym", "path": str(rows), "world": world}
        assert trains(env_config, replies) == ({"replay"}, {"ok"})


def test_an_environment_of_openenv_in_another_interpreter(trains, openenv):
    """The class itself, without its server; what it takes and returns are objects of its package."""
    world = {"tests.helpers.openenv_far:Adder": {"python": openenv}}
    assert trains({"world": world}, ["1", "2"]) == ({"fork"}, {"ok"})


def test_tasks_of_verifiers(trains, tmp_path, monkeypatch):
    """In its own interpreter: openai 3 and mcp 2.3 are excluded by its pins."""
    python = python_with("verifiers-0.4", "verifiers==0.4.0")
    shutil.copy(Path(REPOSITORY) / "tests" / "helpers" / "capitals.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    write_rows("rows.jsonl", "capitals", python=python, number=4)
    world = {"verifiers": {"python": python, "taskset": "capitals"}}
    replies = ['<atlas_look_up> {"country": "Norway"} </atlas_look_up>', '<first> {"word": "Oslo"} </first>', "Oslo"]
    assert trains({"task": "rows", "path": "rows.jsonl", "world": world}, replies) == ({"fork"}, {"ok"})
