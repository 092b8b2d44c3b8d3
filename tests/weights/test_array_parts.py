"""Weights in parts are the same as those that go in one piece, bit by bit."""

import numpy as np
import pytest
import torch

from rllib_arpo.policy.llm_rl_module import LLMRLModule
from rllib_arpo.weights.snapshot import WeightSnapshot, arrays_in_parts, put_weights
from tests.helpers.models import tiny_model


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
