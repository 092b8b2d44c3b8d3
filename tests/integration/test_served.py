"""Worlds of real servers, and of an interpreter with packages that the locks exclude: two iterations with forks."""

import json
import shutil
from pathlib import Path

import pytest

from rllib_arpo.envs.worlds.verifiers import write_rows
from tests.helpers.api_agents import framework
from tests.helpers.other_python import free_port, python_with, running

REPOSITORY = str(Path(__file__).resolve().parents[2])
pytestmark = [pytest.mark.packages, pytest.mark.timeout(1800)]
LIMITS = {"max_tool_calls": 4, "max_response_tokens": 1200, "max_turn_tokens": 64}


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
        ways, result = trains({"world": {"openenv": world}}, replies, **LIMITS)
        assert (ways, result["statuses"]) == ({"replay"}, {"ok"})


def test_an_environment_of_openenv_in_another_interpreter(trains, openenv):
    """The class itself, without its server; what it takes and returns are objects of its package."""
    world = {"tests.helpers.openenv_app:FarAdder": {"python": openenv}}
    ways, result = trains({"world": world}, ["1", "2"], **LIMITS)
    assert (ways, result["statuses"]) == ({"fork"}, {"ok"})


def test_tasks_of_verifiers(trains, tmp_path, monkeypatch):
    """In its own interpreter: openai 3 and mcp 2.3 are excluded by its pins."""
    python = python_with("verifiers-0.4", "verifiers==0.4.0")
    shutil.copy(Path(REPOSITORY) / "tests" / "helpers" / "capitals.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    write_rows("rows.jsonl", "capitals", python=python, number=4)
    world = {"verifiers": {"python": python, "taskset": "capitals"}}
    replies = ['<atlas_look_up> {"country": "Norway"} </atlas_look_up>', '<first> {"word": "Oslo"} </first>', "Oslo"]
    ways, result = trains({"task": "rows", "path": "rows.jsonl", "world": world}, replies, **LIMITS)
    assert (ways, result["statuses"]) == ({"fork"}, {"ok"})


@pytest.mark.parametrize(("kind", "begins"), [("langchain", False), ("smolagents", True)])
def test_an_agent_of_a_framework(trains, calling_folder, kind, begins):
    """LangChain sends back what it was answered; smolagents writes calls as text: each step is another conversation."""
    python = python_with("agents", "langchain==1.5.2", "langchain-openai==1.7.4", "smolagents[openai]==1.26.0")
    end = {"langchain": "Done.", "smolagents": _call("final_answer", answer="3")}[kind]
    replies = [_call("add", n=1), _call("add", n=2), end]
    env_config = {"world": {framework: {"interpreter": python, "kind": kind}}, "protocol": "function_calling"}
    limits = {"max_tool_calls": 6, "max_response_tokens": 1800, "max_turn_tokens": 100}
    ways, result = trains(env_config, replies, model=calling_folder, **limits)
    assert (ways, result["requests_refused"], result["new_contexts"] > 0) == ({"replay"}, 0, begins)


def _call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
