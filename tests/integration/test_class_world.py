"""A class that is written for TRL trains here."""

import json

from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.rollout.episodes import episode_to_tree
from tests.helpers.configs import small_config
from tests.helpers.models import TOKENIZER_SIZE, byte_tokenizer
from tests.helpers.safe import Safe

ROWS = [{"prompt": "Open the safe.", "code": code} for code in ("12", "21")]
TURNS = ("<turn> 12 </turn>", "<turn> 21 </turn>", "<answer> \\boxed{done} </answer>")


def test_a_class_trains_for_two_iterations_and_forks_by_copy(ray_cluster, built, model_folder, tmp_path, monkeypatch):
    copies, copied = [], WorldMaker.copied

    def counted(forking, world):
        copies.append(copied(forking, world))
        return copies[-1]

    monkeypatch.setattr(WorldMaker, "copied", counted)
    (tmp_path / "safes.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    replies = [byte_tokenizer().encode(turn, add_special_tokens=False) for turn in TURNS]
    config = small_config(model_folder, vocab_size=TOKENIZER_SIZE, replies=replies)
    env_config = {"world": "tests.helpers.safe:Safe", "task": "rows", "path": str(tmp_path / "safes.jsonl")}
    config.environment("ToolEnv-v0", env_config=env_config)
    config.adaptive_rollout(branching="always", max_turn_tokens=40, max_response_tokens=320)
    config.evaluation(evaluation_config={"env_config": {}})
    algorithm = built(config)
    for iteration in (1, 2):
        result = algorithm.train()
        assert result["training_iteration"] == iteration
        trees = [episode_to_tree(sampled.episode) for sampled in algorithm.last_sampled]
        assert sorted(tree.question_id for tree in trees) == ["safes/0", "safes/1"]
        forks = [t for tree in trees for t in tree.trajectories if "." in t.agent_id]
        assert forks and {t.stop_reason.name for t in forks} <= {"ANSWER", "TOOL_CALL_LIMIT"}
    # The roots' as well.
    assert len(copies) > len(forks) and all(type(copy.world.object) is Safe for copy in copies)
