"""Worlds of users, whole: classes, programs and agents with scripted words and a real update, and real servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rllib_arpo import connectors
from tests.helpers.api_agents import adder, framework, process
from tests.helpers.other_python import free_port, python_with, running

REPOSITORY = str(Path(__file__).resolve().parents[2])


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("world", "begins"),
    [(adder, False), (process, False), ({adder: {"compacts_at": 4}}, True), ({adder: {"helped": True}}, True)],
    ids=["in this process", "a process", "compacts its history", "asks a helper"],
)
def test_an_unmodified_agent_trains_with_forks(trains, calling_folder, monkeypatch, world, begins):
    """What is trained are the sampled ids, of which one is half of a letter: no text gives it back."""
    tokenizer = AutoTokenizer.from_pretrained(calling_folder)
    (half,) = set(tokenizer.encode("\u00e9")) - set(tokenizer.encode("\u00e8")) - set(tokenizer.encode("\u00c3"))
    replies = [[half, *tokenizer.encode(call("add", n=n))] for n in (1, 2, 4)]
    replies.append([half, *tokenizer.encode("Done."), tokenizer.eos_token_id])
    packed, pack_tree = [], connectors.pack_tree
    monkeypatch.setattr(
        connectors, "pack_tree", lambda *args, **kwargs: packed.append(pack_tree(*args, **kwargs)) or packed[-1]
    )
    env_config = {"world": world, "protocol": "function_calling"}
    limits = {"max_response_tokens": 1200, "max_turn_tokens": 100, "max_tool_calls": 5}
    trained = trains(env_config, replies, model=calling_folder, **limits)
    for result in trained.results:
        assert (result["requests_refused"], result["new_contexts"] > 0) == (0, begins)
        assert set(result["stop"]) >= {"world_ended"}
        assert result["stop"]["world_ended"] + result["stop"]["tool_call_limit"] == 1.0
    for tree, whole in zip(trained.trees, packed, strict=True):
        turns = [turn.token_ids.tolist() for trajectory in tree.trajectories for turn in trajectory.turns]
        assert all(turn in replies for turn in turns)
        assert sorted(whole.token_ids[whole.loss_mask].tolist()) == sorted(token for turn in turns for token in turn)
        for trajectory, reward in zip(tree.trajectories, tree.returns(), strict=True):
            paid = [turn.reward for turn in tree.path(trajectory.agent_id)]
            assert paid[:-1] == [0.0] * (len(paid) - 1)
            assert paid[-1] == reward
    evaluated = trained.algorithm.evaluate()["env_runners"]
    assert (evaluated["requests_refused"], evaluated["new_contexts"] > 0) == (0, begins)


LIMITS = {"max_tool_calls": 4, "max_response_tokens": 1200, "max_turn_tokens": 64}


def in_other_interpreters(test):
    """With packages that the locks exclude, because of versions that these need."""
    return pytest.mark.packages(pytest.mark.timeout(1800)(test))


@in_other_interpreters
def test_openenv(trains):
    openenv, port = python_with("openenv-0.10", "openenv==0.10.0"), free_port()
    command = [openenv, "-m", "uvicorn", "--app-dir", REPOSITORY, "--port", str(port), "tests.helpers.openenv_app:app"]
    with running(*command, port=port):
        world = {"url": f"http://127.0.0.1:{port}", "read": "number"}
        trained = trains({"world": {"openenv": world}}, ["1", "2"], **LIMITS)
        assert (trained.ways, trained.statuses) == ({"replay"}, {"ok"})


@in_other_interpreters
@pytest.mark.parametrize(("kind", "begins"), [("langchain", False), ("smolagents", True)])
def test_an_agent_of_a_framework(trains, calling_folder, kind, begins):
    """LangChain sends back what it was answered; smolagents writes calls as text: each step is another conversation."""
    python = python_with("agents", "langchain==1.5.2", "langchain-openai==1.7.4", "smolagents[openai]==1.26.0")
    end = {"langchain": "Done.", "smolagents": call("final_answer", answer="3")}[kind]
    replies = [call("add", n=1), call("add", n=2), end]
    env_config = {"world": {framework: {"interpreter": python, "kind": kind}}, "protocol": "function_calling"}
    limits = {"max_tool_calls": 6, "max_response_tokens": 1800, "max_turn_tokens": 100}
    trained = trains(env_config, replies, model=calling_folder, **limits)
    result = trained.results[-1]
    assert (trained.ways, result["requests_refused"], result["new_contexts"] > 0) == ({"replay"}, 0, begins)
