"""What several of these tests train: a scripted policy with a signal in every group, and worlds that are forked."""

import shutil
from dataclasses import dataclass, field

import pytest
from transformers import AutoTokenizer

from rllib_arpo import ARPO, ARPOConfig
from rllib_arpo.core.figures import tool_calls
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.rollout.messages import SampledQuestion
from tests.helpers.chat_templates import QWEN25
from tests.helpers.configs import scripted_config, small_config
from tests.helpers.models import byte_tokenizer


@pytest.fixture
def scripted(ray_cluster, model_folder) -> ARPOConfig:
    return scripted_config(model_folder)


@pytest.fixture
def calling_folder(model_folder, tmp_path) -> str:
    """The tiny model with a template for tools."""
    folder = shutil.copytree(model_folder, tmp_path / "calling")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = QWEN25
    tokenizer.save_pretrained(folder)
    return str(folder)


def record_batches(algorithm: ARPO) -> list[list[SampledQuestion]]:
    """The batches of the updates from now on."""
    batches, update = [], algorithm._update
    algorithm._update = lambda batch: (batches.append(batch), update(batch))[1]
    return batches


@dataclass(frozen=True)
class Trained:
    """Two iterations on a world.

    Attributes:
        ways: how it forked.
        statuses: what its tools answered.
        results: the metrics of the rollouts, of each iteration.
        trees: of both iterations.
    """

    algorithm: ARPO
    ways: set[str] = field(default_factory=set)
    statuses: set[str] = field(default_factory=set)
    results: list[dict] = field(default_factory=list)
    trees: list[QuestionTree] = field(default_factory=list)


@pytest.fixture
def trains(ray_cluster, model_folder, built, monkeypatch):
    """trains(env_config, moves, ...) -> `Trained`, with forks.

    Moves are all texts or all tokens; `model` is a folder; further keywords are of `adaptive_rollout`.
    """

    def run(env_config, moves, *, model=model_folder, **rollout) -> Trained:
        tokenizer, method = byte_tokenizer(), WorldMaker.fork_method
        words = [tokenizer.encode(move, add_special_tokens=False) for move in moves if isinstance(move, str)]
        replies = [[*ids, tokenizer.eos_token_id] for ids in words] or moves
        config = small_config(model, vocab_size=len(tokenizer), replies=replies)
        config.environment("ToolEnv-v0", env_config=env_config).language_model(max_context_tokens=2048)
        config.evaluation(evaluation_config={"env_config": {}})
        trained = Trained(built(config.adaptive_rollout(branching="always", entropy_window=2, **rollout)))

        def noted(maker):
            trained.ways.add(method.fget(maker))
            return method.fget(maker)

        monkeypatch.setattr(WorldMaker, "fork_method", property(noted))
        for _ in range(2):
            result = trained.algorithm.train()["env_runners"]
            assert (result["forks_refused"], result["stop"].get("broken_tool", 0.0)) == (0, 0.0)
            trained.results.append(result)
            trained.trees.extend(sampled.tree for sampled in trained.algorithm.last_sampled)
        assert sum(result["forks_per_question"] for result in trained.results) > 0
        trained.statuses.update(str(call.status) for tree in trained.trees for call in tool_calls(tree))
        return trained

    return run
