"""Weights in parts, and the probe of an engine that computes with the learner's weights or does not."""

import contextlib

import numpy as np
import pytest
import torch

from rllib_arpo.policy.checkpoint_names import as_tensors
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from rllib_arpo.weights.snapshot import (
    WeightSnapshot,
    WeightSyncError,
    arrays_in_parts,
    load_and_verify,
    probe_tokens,
    put_weights,
)
from tests.helpers.models import tiny_model
from tests.helpers.weights import weights_of

SNAPSHOT = WeightSnapshot(4, {"w": np.ones(2)}, np.array([5, 6, 7], np.int32), np.array([-1.0, -2.0], np.float32))


class FakeEngine:
    """Returns given log-probs."""

    def __init__(self, computed, has_model: bool = True):
        self.computed, self.has_model, self.weight_version = np.array(computed, np.float32), has_model, 3

    def update_weights(self, weights, version):
        self.weights, self.weight_version = dict(weights), version

    def score(self, token_ids):
        assert token_ids == [5, 6, 7]
        return self.computed


@pytest.mark.parametrize(("computed", "dtype", "complaint"), [
    ([-1.0, -2.0005], "float32", None),
    ([-1.0, -2.25], "float32", r"differ by 0\.25 nats .* more than 0\.001 \(float32\)"),
    ([np.nan, -2.0], "float32", r"differ by nan nats"),
    ([-1.0, -2.5], "bfloat16", None),
    ([-1.0, -5.0], "bfloat16", r"more than 2 \(bfloat16\)"),
])  # fmt: skip
def test_an_engine_is_of_the_version_if_it_computes_the_same(computed, dtype, complaint):
    """Coarser types have coarser tolerances."""
    engine = FakeEngine(computed)
    with contextlib.nullcontext() if complaint is None else pytest.raises(WeightSyncError, match=complaint):
        load_and_verify(engine, SNAPSHOT, dtype)
    assert engine.weight_version == (4 if complaint is None else -1)
    assert engine.weights["w"].tolist() == [1.0, 1.0]


def test_an_engine_without_a_model_has_nothing_to_compare():
    engine = FakeEngine([0.0, 0.0], has_model=False)
    load_and_verify(engine, SNAPSHOT, "float32")
    assert engine.weight_version == 4


def test_the_probe_follows_from_the_vocabulary():
    probe = probe_tokens(300, max_context_tokens=512)
    assert probe.tolist() == probe_tokens(300, max_context_tokens=2048).tolist()
    assert (len(probe), probe.dtype, probe.min() >= 0, probe.max() < 300) == (8, np.int32, True, True)
    assert len(probe_tokens(300, max_context_tokens=6)) == 5


def test_the_learner_scores_at_temperature_1(tmp_path):
    folder = tiny_model(tmp_path, seed=3, vocab_size=300)
    module = LLMRLModule(model_config={"model_name_or_path": folder, "dtype": "float32", "temperature": 0.7})
    probe = probe_tokens(module.vocab_size, 512)
    scores, ids = module.score(probe), torch.from_numpy(probe).long()[None]
    module.causal_lm.set_attn_implementation("eager")
    with torch.no_grad():
        expected = module.causal_lm(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    np.testing.assert_allclose(scores, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_of_the_engines_type(tmp_path, tied):
    folder = tiny_model(tmp_path, tie_word_embeddings=tied, seed=3)
    module = LLMRLModule(model_config={"model_name_or_path": folder, "dtype": "bfloat16", "temperature": 0.7})
    narrow, own = module.weight_views(torch.bfloat16), weights_of(folder)
    assert {array.dtype for array in narrow.values()} == {np.dtype(np.uint16)}
    assert (narrow["lm_head.weight"] is narrow["model.embed_tokens.weight"]) == tied
    tensors = dict(as_tensors(narrow))
    assert tensors.keys() == own.keys()
    for name, array in own.items():
        assert torch.equal(tensors[name], torch.from_numpy(array).bfloat16())
    for name, view in module.weight_views(torch.float32).items():
        assert np.shares_memory(view, module.causal_lm.state_dict()[name].numpy())


@pytest.mark.parametrize("part_bytes", [1, 40_000, 1 << 30])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_parts_make_up_the_weights_that_go_in_one_piece(tmp_path, tied, dtype, part_bytes):
    folder = tiny_model(tmp_path, tie_word_embeddings=tied, seed=3)
    module = LLMRLModule(model_config={"model_name_or_path": folder, "dtype": "bfloat16", "temperature": 1.0})
    parts = list(arrays_in_parts(module.trained_weights(), dtype, part_bytes))
    whole, together = module.weight_views(dtype), {name: array for part in parts for name, array in part.items()}
    assert sum(map(len, parts)) == len(together)  # No name comes twice.
    assert together.keys() == whole.keys()
    for name, array in whole.items():
        assert (array.dtype, array.shape) == (together[name].dtype, together[name].shape)
        assert array.tobytes() == together[name].tobytes()
    assert (together["lm_head.weight"] is together["model.embed_tokens.weight"]) == tied


def test_a_part_ends_with_the_weight_that_fills_it():
    weights = {name: torch.zeros(size) for name, size in (("a", 2), ("b", 1), ("c", 8), ("d", 1))}
    sizes = {part_bytes: [list(p) for p in arrays_in_parts(weights, None, part_bytes)] for part_bytes in (12, 13, 48)}
    assert sizes == {12: [["a", "b"], ["c"], ["d"]], 13: [["a", "b", "c"], ["d"]], 48: [["a", "b", "c", "d"]]}
    halved = [list(part) for part in arrays_in_parts(weights, torch.bfloat16, 13)]
    assert halved == [["a", "b", "c"], ["d"]]
    assert list(arrays_in_parts({}, None)) == []


def test_the_object_store_gives_back_what_was_put(ray_cluster):
    head = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    weights = {"embed": head, "norm": torch.full((4,), 1 / 3), "head": head}
    put = put_weights(weights, torch.bfloat16, part_bytes=1)
    assert len(put.parts) == 2
    probe = np.zeros(0)
    received = WeightSnapshot(3, put, probe, probe).received()
    assert received.version == 3
    assert {name: array.shape for name, array in received.weights.items()} == {
        "embed": (2, 3),
        "head": (2, 3),
        "norm": (4,),
    }
    assert received.weights["embed"] is received.weights["head"]
    assert received.weights["norm"].tolist() == torch.full((4,), 1 / 3).bfloat16().view(torch.uint16).tolist()
    assert received.received() is received
