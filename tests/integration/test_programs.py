"""Programs and agents of an API as worlds: two iterations with forks, scripted words and a real update."""

from __future__ import annotations

import re

import pytest
from transformers import AutoTokenizer

from rllib_arpo import connectors
from tests.helpers.api_agents import adder, process
from tests.helpers.configs import small_config
from tests.helpers.models import byte_tokenizer

WORDS = ("two", "three", "five")


async def adds(chat, row, *, steps=3):
    """Every word is a number; its reward is the sum below ten."""
    total = row["seed"] % 2
    for _ in range(steps):
        total += {"two": 2, "three": 3, "five": 5}[re.sub(r"\W", "", await chat(f"{total} so far. Next?"))]
    return total / 10


def test_a_program_trains_with_forks(ray_cluster, model_folder, built):
    tokenizer = byte_tokenizer()
    replies = [[*tokenizer.encode(word), tokenizer.eos_token_id] for word in WORDS]
    config = small_config(model_folder, vocab_size=len(tokenizer), replies=replies)
    config.environment("ToolEnv-v0", env_config={"world": {adds: {"steps": 3}}})
    config.adaptive_rollout(branching="always", entropy_window=2, max_response_tokens=300)
    algorithm = built(config)
    for _ in range(2):
        result = algorithm.train()["env_runners"]
        assert (result["forks_refused"], result["stop"]["world_ended"]) == (0, 1.0)
        for tree in (sampled.tree for sampled in algorithm.last_sampled):
            assert sum(trajectory.parent is not None for trajectory in tree.trajectories) == 2
            for trajectory in tree.trajectories:
                said = [
                    tokenizer.decode(turn.token_ids).removesuffix("<|im_end|>")
                    for turn in tree.path(trajectory.agent_id)
                ]
                assert len(said) == 3
                start = int(tree.question_id.removeprefix("seed/")) % 2
                paid = start + sum({"two": 2, "three": 3, "five": 5}[word] for word in said)
                assert tree.returns()[tree.trajectories.index(trajectory)] == paid / 10


@pytest.mark.parametrize(
    ("world", "begins"),
    [(adder, False), (process, False), ({adder: {"compacts_at": 4}}, True), ({adder: {"helped": True}}, True)],
    ids=["in this process", "a process", "compacts its history", "asks a helper"],
)
def test_an_unmodified_agent_trains_with_forks(ray_cluster, calling_folder, built, monkeypatch, world, begins):
    """What is trained are the sampled ids, of which one is half of a letter: no text gives it back."""
    tokenizer = AutoTokenizer.from_pretrained(calling_folder)
    (half,) = set(tokenizer.encode("\u00e9")) - set(tokenizer.encode("\u00e8")) - set(tokenizer.encode("\u00c3"))
    calls = [f'<tool_call>\n{{"name": "add", "arguments": {{"n": {n}}}}}\n</tool_call>' for n in (1, 2, 4)]
    replies = [[half, *tokenizer.encode(call)] for call in calls]
    replies.append([half, *tokenizer.encode("Done."), tokenizer.eos_token_id])
    config = small_config(calling_folder, vocab_size=len(tokenizer), replies=replies)
    config.language_model(max_context_tokens=2048)
    env_config = {"world": world, "protocol": "function_calling"}
    config.environment("ToolEnv-v0", env_config=env_config)
    config.adaptive_rollout(
        branching="always", entropy_window=2, max_response_tokens=1200, max_turn_tokens=100, max_tool_calls=5
    )
    packed, pack_tree = [], connectors.pack_tree
    monkeypatch.setattr(
        connectors, "pack_tree", lambda *args, **kwargs: packed.append(pack_tree(*args, **kwargs)) or packed[-1]
    )
    algorithm = built(config)
    forks = 0
    for _ in range(2):
        packed.clear()
        result = algorithm.train()["env_runners"]
        assert (result["forks_refused"], result["requests_refused"]) == (0, 0)
        assert (result["new_contexts"] > 0) == begins
        assert set(result["stop"]) >= {"world_ended"}
        assert result["stop"]["world_ended"] + result["stop"]["tool_call_limit"] == 1.0
        trees = [sampled.tree for sampled in algorithm.last_sampled]
        for tree, trained in zip(trees, packed, strict=True):
            turns = [turn.token_ids.tolist() for trajectory in tree.trajectories for turn in trajectory.turns]
            assert all(turn in replies for turn in turns)
            found = trained.token_ids[trained.loss_mask].tolist()
            assert sorted(found) == sorted(token for turn in turns for token in turn)
            for trajectory, reward in zip(tree.trajectories, tree.returns(), strict=True):
                paid = [turn.reward for turn in tree.path(trajectory.agent_id)]
                assert paid[:-1] == [0.0] * (len(paid) - 1)
                assert paid[-1] == reward
            forks += sum(trajectory.parent is not None for trajectory in tree.trajectories)
    assert forks > 0
    evaluated = algorithm.evaluate()["env_runners"]
    assert (evaluated["requests_refused"], evaluated["new_contexts"] > 0) == (0, begins)
