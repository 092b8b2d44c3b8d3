"""The learner's benchmarks run end to end on a tiny model, and their sides compute the same thing."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from release.benchmarks.learner import rollouts, sides
from release.benchmarks.learner.tree_workload import make_question
from tests.gpu.flops import model_flops
from tests.helpers.models import tiny_model
from tests.helpers.trees import make_trajectory, make_tree, make_turn
from tests.learner import plain

REPOSITORY = Path(__file__).resolve().parents[2]
KEYS = (
    "grad_rel_error",
    "speedup_packed_2.5",
)
#: How far a ratio may be from the one asked for with the tiny run's few tokens.
TINY_TOLERANCE = 0.15


@pytest.fixture
def model(tmp_path) -> str:
    return tiny_model(tmp_path / "model")


@pytest.fixture
def two_paths():
    """Two trajectories of lengths 7 and 6 that share a prompt of 2 tokens and a turn of 1 with its response of 1."""
    first = make_trajectory("0", [make_turn([3], [4]), make_turn([5, 6, 7])], reward=1.0)
    fork = make_trajectory("0.0", [make_turn([8, 9])], reward=0.0, num_inherited_turns=1)
    return make_tree([1, 2], [first, fork])


@pytest.mark.slow
def test_a_tiny_run_writes_every_key_with_its_detail(tmp_path):
    results = tmp_path / "results.json"
    argv = [sys.executable, "-m", "release.benchmarks.learner", "--json", str(results), "--tiny"]
    argv += ["--only", ",".join(KEYS)]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    written = json.loads(results.read_text())
    for key in KEYS:
        assert math.isfinite(written[key]), key
        detail = written[f"{key}_detail"]
        assert {"model", "load_before"} <= detail.keys()
        if "2.5" in key:
            assert detail["sharing_ratio"] == round(detail["flat_tokens"] / detail["unique_tokens"], 4)
            assert detail["sharing_ratio"] == pytest.approx(2.5, rel=TINY_TOLERANCE)
    assert written["grad_rel_error"] < 1e-5
    assert written["command"].startswith("python -m release.benchmarks.learner --json ")
    assert "speedup_packed_2.5" in done.stdout


@pytest.mark.parametrize("max_tokens", [1 << 20, 64], ids=["one pass", "several passes"])
def test_all_sides_have_the_gradients_of_the_plain_computation(model, max_tokens):
    question = make_question(2.5, 60)
    expected = plain.load(model, torch.float32)
    config = rollouts.make_config(model)
    old = plain.all_log_probs(expected, [question], config.temperature)
    plain.loss(expected, [question], config, old, old).backward()
    expected = sides.take_gradients(expected)

    data = rollouts.make_rollouts([question])
    for name in ("ours", "packed"):
        side = sides.make_side(name, model, data, max_tokens)
        side()
        gradients = sides.take_gradients(side.model)
        assert gradients.keys() == expected.keys()
        for parameter, gradient in gradients.items():
            scale = expected[parameter].abs().max().item()
            assert (gradient - expected[parameter]).abs().max().item() <= 2e-5 * scale, (name, parameter)


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.5, 5.0])
def test_questions_share_as_much_as_is_asked_for(ratio):
    question = make_question(ratio, 2048)
    sizes = rollouts.make_rollouts([question]).sizes()
    assert sizes["sharing_ratio"] == pytest.approx(ratio, rel=0.005)
    assert sizes["unique_tokens"] == pytest.approx(2048, rel=0.01)
    assert sizes["trajectories"] == 8
    forks = [t.agent_id for t in question.trajectories if t.parent is not None]
    assert forks == ([] if ratio == 1.0 else ["0.0", "0.0.0", "1.0", "2.0"])


def test_model_flops(two_paths, model):
    # Per layer 64 (64 + 32 + 32 + 64 + 3 * 128) parameters, two layers; the head has 259 * 64. Nine tokens, six of them
    # generated, at depths 1 .. 7 and 5, 6: 39 pairs for each of two heads of 32.
    data = rollouts.make_rollouts([two_paths])
    flops = model_flops(plain.load(model, torch.float32), data.trees)
    assert flops == 6 * (73_728 * 9 + 16_576 * 6) + 12 * 2 * 2 * 32 * 39


def test_model_flops_of_a_mixture_are_those_of_the_experts_that_a_token_meets(two_paths, tmp_path):
    # Instead of 3 * 64 * 128 parameters a layer has 2 experts of 3 * 64 * 48, and the router's 4 * 64.
    data = rollouts.make_rollouts([two_paths])
    mixture = plain.load(tiny_model(tmp_path, "qwen3_moe"), torch.float32)
    body = 2 * (64 * (64 + 32 + 32 + 64) + 2 * 3 * 64 * 48 + 4 * 64)
    assert model_flops(mixture, data.trees) == 6 * (body * 9 + 16_576 * 6) + 12 * 2 * 2 * 32 * 39
