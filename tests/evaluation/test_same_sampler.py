"""The evaluation asks as training's env runner does, and with vLLM as with any engine."""

from __future__ import annotations

import json

import pytest

import rllib_arpo
from rllib_arpo.commands import run_command
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from rllib_arpo.rollout.episodes import episode_to_tree
from rllib_arpo.rollout.messages import Purpose, question_refs
from tests.evaluation.conftest import REPLIES, recorded, samples, scripted_command
from tests.helpers.configs import small_config
from tests.helpers.models import byte_tokenizer


def test_the_samples_are_those_of_an_env_runner(model_folder, tmp_path):
    rllib_arpo.register()
    tokenizer = byte_tokenizer()
    replies = [tokenizer.encode(reply, add_special_tokens=False) for reply in REPLIES]
    config = small_config(model_folder, vocab_size=259, replies=replies)
    config.adaptive_rollout(
        num_rollouts=3, num_initial_rollouts=3, branching="never", deterministic=True, max_response_tokens=300
    )
    config.adaptive_rollout(max_turn_tokens=100, max_tool_calls=2)
    config.evaluation(evaluation_config={"explore": True, "env_config": {"split": "test", "num_test_questions": 12}})
    runner = ARPOEnvRunner(config)
    sampled = runner.sample_questions(question_refs(range(5), Purpose.EVALUATION))
    runner.drop_questions()

    options = {"samples": "3", "limit": "5", "max_response_tokens": "300", "max_turn_tokens": "100"}
    command = scripted_command(model_folder, tmp_path, **options, max_tool_calls="2", max_context_tokens="1024")
    assert run_command("evaluate", [*command, "--no-mlflow"]) == 0
    found = [answers(question.tree()) for question in recorded(tmp_path)]
    assert found == [answers(episode_to_tree(question.episode)) for question in sampled]
    assert len({str(answer) for question in found for answer in question}) > 3


def answers(tree: QuestionTree) -> list[tuple]:
    """Every sample with its tokens and those that it read, and its scores."""
    return [
        (
            tree.question_id, leaf.agent_id, leaf.accuracy, leaf.format_valid, leaf.stop_reason, reward,
            [(turn.token_ids.tolist(), turn.observation.tolist()) for turn in leaf.turns],
        )
        for leaf, reward in zip(tree.trajectories, tree.returns().tolist(), strict=True)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def vllm_folder(model_folder, tmp_path_factory):
    """A finished evaluation of the tiny model by vLLM."""
    folder = tmp_path_factory.mktemp("vllm")
    options = {"engine": "vllm", "engine_kwargs": '{"kv_cache_memory_bytes": 8388608}', "max_response_tokens": "24"}
    command = scripted_command(model_folder, folder, **options, samples="2", limit="3", dtype="float32")
    assert run_command("evaluate", [*command, "--max-context-tokens", "1024", "--no-mlflow"]) == 0
    return folder


@pytest.mark.slow
def test_vllm_samples_with_a_seed_of_its_own_for_every_sample(vllm_folder):
    rows = samples(vllm_folder)
    assert [sample.agent_id for sample in rows] == ["0", "1"] * 3
    assert len({sample.row["sampling_seed"] for sample in rows}) == 6
    assert len({sample.turns[0]["text"] for sample in rows}) == 6
    assert all(1 <= sum(len(turn["token_ids"]) for turn in sample.turns) <= 24 for sample in rows)
    summary = json.loads((vllm_folder / "summary.json").read_text())
    assert summary["arms"][0]["metrics"]["pass_at_1"]["num_questions"] == 3
