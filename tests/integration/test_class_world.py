"""A class that is written for TRL trains here and there."""

import inspect
import json
from pathlib import Path

import pytest

from rllib_arpo.envs.worlds.running import RunningWorld
from tests.helpers.configs import small_config
from tests.helpers.models import TOKENIZER_SIZE, byte_tokenizer, tiny_model
from tests.helpers.safe import Safe

ROWS = [{"prompt": "Open the safe.", "code": code} for code in ("12", "21")]
TURNS = ("<turn> 12 </turn>", "<turn> 21 </turn>", "<answer> \\boxed{done} </answer>")


def test_a_class_trains_for_two_iterations_and_forks_by_copy(ray_cluster, built, model_folder, tmp_path, monkeypatch):
    copies, copy = [], RunningWorld.copy

    def counted(running):
        copies.append(copy(running))
        return copies[-1]

    monkeypatch.setattr(RunningWorld, "copy", counted)
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
        trees = [sampled.tree for sampled in algorithm.last_sampled]
        assert sorted(tree.question_id for tree in trees) == ["safes/0", "safes/1"]
        forks = [t for tree in trees for t in tree.trajectories if "." in t.agent_id]
        assert forks and {t.stop_reason.name for t in forks} <= {"ANSWER", "TOOL_CALL_LIMIT"}
    # The roots' as well.
    assert len(copies) > len(forks) and all(type(copy.world.object) is Safe for copy in copies)


@pytest.mark.slow
def test_the_same_class_takes_a_step_in_trls_trainer(tmp_path, monkeypatch):
    trl = pytest.importorskip("trl", reason="TRL is not installed: whether it takes the same class is not tried.")
    datasets = pytest.importorskip("datasets")
    if "environment_factory" not in inspect.signature(trl.GRPOTrainer).parameters:
        pytest.skip(f"TRL {trl.__version__} has no environment_factory.")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    model = tiny_model(tmp_path / "model", "qwen3")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = trl_template(trl)
    tokenizer.save_pretrained(model)
    rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]
    args = trl.GRPOConfig(
        str(tmp_path), per_device_train_batch_size=2, num_generations=2, max_completion_length=8, max_steps=1,
        report_to=[], use_cpu=True, bf16=False, save_strategy="no",
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model, args=args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer,
        environment_factory=Safe,
    )  # fmt: skip
    assert [tool.__name__ for tool in trainer.tools] == ["turn"]
    trainer.train()
    assert (trainer.state.global_step, trainer.reward_func_names) == (1, ["Safe"])
    assert {environment.code for environment in trainer.environments} <= {"12", "21"}


def trl_template(trl) -> str:
    """TRL's own template of Qwen3, which its trainer knows how to read."""
    return (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
