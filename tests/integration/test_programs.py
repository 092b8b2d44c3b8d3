"""Programs as worlds: two iterations with forks, scripted words and a real update."""

from __future__ import annotations

import re

from rllib_arpo.rollout.episodes import episode_to_tree
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
        for tree in (episode_to_tree(sampled.episode) for sampled in algorithm.last_sampled):
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
