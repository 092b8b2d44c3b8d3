"""The evaluation asks as training's env runner does, and with vLLM as with any engine."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

import rllib_arpo
from rllib_arpo.commands import evaluate, run_command
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from rllib_arpo.rollout.episodes import episode_to_tree
from rllib_arpo.rollout.messages import Purpose, question_refs
from tests.evaluation.conftest import REPLIES, scripted_command
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
    rows = pq.read_table(tmp_path / evaluate.TRANSCRIPTS).to_pylist()
    expected = [
        {
            "question_id": tree.question_id,
            "sample": int(leaf.agent_id),
            "reward": leaf.reward,
            "accuracy": leaf.accuracy,
            "format_valid": leaf.format_valid,
            "stop_reason": str(leaf.stop_reason),
            "texts": [tokenizer.decode(turn.token_ids) for turn in leaf.turns],
            "responses": [tokenizer.decode(turn.observation) or None for turn in leaf.turns],
        }
        for question in sampled
        for tree in [episode_to_tree(question.episode)]
        for leaf in tree.trajectories
    ]
    found = [
        {name: row[name] for name in expected[0] if name in row}
        | {"texts": [turn["text"] for turn in row["turns"]], "responses": [turn["response"] for turn in row["turns"]]}
        for row in rows
    ]
    assert found == expected
    assert len({str(row["texts"]) for row in found}) > 3


@pytest.fixture(scope="module")
def vllm_folder(model_folder, tmp_path_factory):
    """A finished evaluation of the tiny model by vLLM."""
    folder = tmp_path_factory.mktemp("vllm")
    options = {"engine": "vllm", "engine_kwargs": '{"kv_cache_memory_bytes": 8388608}', "max_response_tokens": "24"}
    command = scripted_command(model_folder, folder, **options, samples="2", limit="3", dtype="float32")
    assert run_command("evaluate", [*command, "--max-context-tokens", "1024", "--no-mlflow"]) == 0
    return folder


def test_vllm_samples_with_a_seed_of_its_own_for_every_sample(vllm_folder):
    rows = pq.read_table(vllm_folder / evaluate.TRANSCRIPTS).to_pylist()
    assert [(row["number"], row["sample"]) for row in rows] == [(n, s) for n in range(3) for s in range(2)]
    assert len({row["seed"] for row in rows}) == len({row["turns"][0]["text"] for row in rows}) == 6
    assert all(1 <= row["response_tokens"] <= 24 for row in rows)
    summary = json.loads((vllm_folder / "summary.json").read_text())
    assert summary["arms"][0]["metrics"]["pass_at_1"]["num_questions"] == 3
