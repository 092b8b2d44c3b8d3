"""Fixtures of the environment tests: a byte-level tokenizer (one token per byte) and environments on it."""

import asyncio
import tempfile
from pathlib import Path

import numpy as np
import pytest

from rllib_arpo.envs.forkable_env import INFO_STEP, OPTION_NUM_ROOTS, OPTION_QUESTION
from rllib_arpo.envs.tool_env import ToolEnv
from tests.helpers.models import byte_tokenizer

EOS = "<|im_end|>"
TOOLS = {"python": {}, "search": {"documents": [{"title": "brass lamp", "text": "12"}]}}


@pytest.fixture
def anyio_backend() -> str:
    """Where tests that are coroutine functions run, each in a loop of its own."""
    return "asyncio"


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def make_tool_env(tokenizer_folder):
    """make_tool_env(...) -> a ToolEnv with the byte tokenizer, by default of arithmetic with two tools."""

    def make(**env_config) -> ToolEnv:
        task = {} if {"world", "task"} & set(env_config) else {"task": "arithmetic", "tools": TOOLS}
        return ToolEnv({"model_name_or_path": tokenizer_folder, **task, **env_config})

    return make


@pytest.fixture
def begun(make_tool_env):
    """begun(question=0, num_roots=1, ...) -> such a ToolEnv whose question has begun."""

    def begin(question: int = 0, num_roots: int = 1, **env_config) -> ToolEnv:
        env = make_tool_env(**env_config)
        start = env.reset(options={OPTION_QUESTION: question, OPTION_NUM_ROOTS: num_roots})
        if asyncio.iscoroutine(start):
            asyncio.run(start)
        return env

    return begin


@pytest.fixture
def turn():
    """turn(env, agent, text) -> (text of the observation, reward, StepInfo, done) of one step."""

    def step(env: ToolEnv, agent: str, text: str):
        tokens = np.asarray(env.tokenizer.encode(text, add_special_tokens=False), np.int32)
        observation, reward, terminated, truncated, info = asyncio.run(env.step_agent(agent, tokens))
        return env.tokenizer.decode(observation.tolist()), reward, info[INFO_STEP], terminated or truncated

    return step


@pytest.fixture
def public_folder():
    """An empty folder that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path
        path.chmod(0o755)
