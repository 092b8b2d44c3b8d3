"""The policy that several of these tests train: a scripted policy with a signal in every group."""

import shutil

import pytest
from ray import tune
from transformers import AutoTokenizer

from rllib_arpo.core.figures import tool_calls
from rllib_arpo.envs.worlds.maker import WorldMaker
from tests.helpers.chat_templates import QWEN25
from tests.helpers.configs import small_config
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.models import byte_tokenizer
from tests.helpers.scripted_env import ANSWER


@pytest.fixture
def scripted(ray_cluster, model_folder):
    """A configuration on `FaultyEnv`: root "0" is right, the others are wrong, so that every group has a signal."""
    tune.register_env("Faulty-v0", FaultyEnv)
    config = small_config(model_folder, vocab_size=256, end_token_id=ANSWER, end_probability=0.3)
    config.environment("Faulty-v0", env_config={"rewards": {"0": 1.0}})
    return config.evaluation(evaluation_config={"env_config": {}})


@pytest.fixture
def calling_folder(model_folder, tmp_path) -> str:
    """The tiny model with a template for tools."""
    folder = shutil.copytree(model_folder, tmp_path / "calling")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = QWEN25
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def trains(ray_cluster, model_folder, built, monkeypatch):
    """trains(env_config, moves, ...) -> how worlds forked in two iterations, and the second's metrics.

    `model` is a folder; further keywords are of `adaptive_rollout`. What tools answered: `statuses` of the metrics.
    """
    methods, method = set(), WorldMaker.fork_method

    def noted(maker):
        methods.add(method.fget(maker))
        return method.fget(maker)

    def run(env_config, moves, *, model=model_folder, **rollout):
        monkeypatch.setattr(WorldMaker, "fork_method", property(noted))
        tokenizer, statuses = byte_tokenizer(), set()
        replies = [[*tokenizer.encode(move, add_special_tokens=False), tokenizer.eos_token_id] for move in moves]
        config = small_config(model, vocab_size=len(tokenizer), replies=replies)
        config.environment("ToolEnv-v0", env_config=env_config).language_model(max_context_tokens=2048)
        algorithm = built(config.adaptive_rollout(branching="always", entropy_window=2, **rollout))
        for _ in range(2):
            result = algorithm.train()["env_runners"]
            assert (result["forks_refused"], result["stop"].get("broken_tool", 0.0)) == (0, 0.0)
            assert result["forks_per_question"] > 0
            statuses |= {str(call.status) for sampled in algorithm.last_sampled for call in tool_calls(sampled.tree)}
        return methods, result | {"statuses": statuses}

    return run
