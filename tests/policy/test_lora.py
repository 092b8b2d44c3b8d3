"""Adapters travel alone and are merged where the engine is."""

import numpy as np
import pytest
import torch

from rllib_arpo.policy.lora import MergedWeights
from tests.helpers.models import tiny_model
from tests.helpers.weights import peft_model, weights_of

LORA = {"r": 2, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj"], "rank_pattern": {"v_proj": 3}}


def random_adapter(folder: str, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {name: t.shape for name, t in MergedWeights(folder, LORA, "float32")._adapter.tensors().items()}
    return {name: rng.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def merged_by_peft(folder: str, adapter: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    return peft_model(base, LORA, adapter).merge_and_unload().state_dict()


@pytest.mark.parametrize(("architecture", "tied"), [("llama", True), ("qwen2", False)])
def test_merged_weights_are_pefts(tmp_path, architecture, tied):
    folder = tiny_model(tmp_path, architecture, tie_word_embeddings=tied)
    merge, one, other = MergedWeights(folder, LORA, "float32"), *(random_adapter(folder, seed) for seed in (1, 2))
    first = {name: array.copy() for name, array in merge(one).items()}
    expected = merged_by_peft(folder, one)
    assert first.keys() == expected.keys() == weights_of(folder).keys()
    for name, weight in expected.items():
        np.testing.assert_allclose(first[name], weight, atol=1e-6)
    base = weights_of(folder)
    assert {name.split(".")[-2] for name, array in first.items() if not np.array_equal(array, base[name])} == {
        "q_proj",
        "v_proj",
        "down_proj",
    }
    merge(other)
    again = merge(one)
    assert all(np.array_equal(again[name], array) for name, array in first.items()), "merging leaves traces"
    assert (again["lm_head.weight"] is again["model.embed_tokens.weight"]) == tied


def test_a_base_in_bf16_is_merged_in_fp32(tmp_path):
    folder = tiny_model(tmp_path)
    adapter = random_adapter(folder, 1)
    merged = MergedWeights(folder, LORA, "bfloat16")(adapter)
    assert {array.dtype for array in merged.values()} == {np.dtype("float32")}
    name = "model.layers.0.self_attn.q_proj"
    a, b = (torch.from_numpy(adapter[f"base_model.model.{name}.lora_{matrix}.weight"]) for matrix in "AB")
    base = torch.from_numpy(weights_of(folder)[f"{name}.weight"]).bfloat16().float()
    torch.testing.assert_close(torch.from_numpy(merged[f"{name}.weight"]), base + 3.0 * b @ a)


def test_an_adapter_of_another_kind_is_refused(tmp_path):
    folder = tiny_model(tmp_path)
    adapter = random_adapter(folder, 1)
    adapter["lm_head.weight"] = adapter.pop(next(iter(adapter)))
    with pytest.raises(
        ValueError, match=r"^These are not the weights of the adapter\. base_model.*: missing, .* 1 more differ\.$"
    ):
        MergedWeights(folder, LORA, "float32")(adapter)
