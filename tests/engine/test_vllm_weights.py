"""New weights for a vLLM engine: afterwards its log-probs are those of the model that sent them."""

import weakref

import numpy as np
import pytest
import torch

from rllib_arpo.engine import EngineConfig, make_engine
from rllib_arpo.engine.vllm import engine as engine_module
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from rllib_arpo.weights.snapshot import WeightSnapshot, WeightSyncError, load_and_verify, probe_tokens
from tests.engine.conftest import ENGINE_KWARGS, reference, run_one, start_engine
from tests.helpers.models import tiny_model
from tests.helpers.weights import weights_of

PROMPT = [10 + i % 40 for i in range(70)]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "tied", "lost"), [
    ("llama", True, ["lm_head.weight"]),
    ("llama", False, ["lm_head.weight", "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"]),
    ("qwen3_moe", False, []),
])  # fmt: skip
def test_new_weights_are_the_learners_weights(tmp_path, monkeypatch, architecture, tied, lost):
    """... and the probe finds those that vLLM does not load (`lost`)."""
    old = tiny_model(tmp_path / "old", architecture, tie_word_embeddings=tied, seed=1)
    new = tiny_model(tmp_path / "new", architecture, tie_word_embeddings=tied, seed=2)
    engine = start_engine(old)
    before = run_one(engine, PROMPT, max_tokens=6, seed=3)
    np.testing.assert_allclose(before.log_probs, reference(old, PROMPT, before.token_ids, 1.0)[0], atol=1e-4)
    assert (set(before.weight_versions), run_one(engine, PROMPT).num_cached_tokens) == ({-1}, 64)

    weights = weights_of(new)
    for array in list(weights.values())[::2]:
        array.flags.writeable = False  # as from Ray's object store
    assert "lm_head.weight" in weights
    engine.update_weights(weights.items(), version=5)
    for array in list(weights.values())[1::2]:
        array[:] = 0  # the engine has its own copy

    after = run_one(engine, PROMPT, max_tokens=6, seed=3, entropy_window=6)
    log_probs, entropies = reference(new, PROMPT, after.token_ids, 1.0)
    np.testing.assert_allclose(after.log_probs, log_probs, atol=1e-4)
    np.testing.assert_allclose(after.entropies, entropies, atol=1e-4)
    assert (set(after.weight_versions), after.num_cached_tokens, engine.weight_version) == ({5}, 0, 5)
    np.testing.assert_allclose(engine.score(PROMPT), reference(new, PROMPT[:1], PROMPT[1:], 1.0)[0], atol=1e-4)

    engine.update_weights(weights_of(old).items(), version=6)
    again = run_one(engine, PROMPT, max_tokens=6, seed=3)
    assert again.token_ids.tolist() == before.token_ids.tolist()
    np.testing.assert_allclose(again.log_probs, before.log_probs, atol=1e-5)
    for name in lost:
        check_that_the_probe_misses(name, engine, old, new, monkeypatch)
    layers = weakref.WeakSet(engine._llm.apply_model(lambda model: list(model.modules()))[0])
    engine.close()
    assert not layers  # vLLM's records of reloading would keep them


def check_that_the_probe_misses(lost: str, engine, old: str, new: str, monkeypatch) -> None:
    """vLLM accepts a partial stream in silence; without `lm_head.weight` a tied head keeps its old, repacked copy."""
    engine.update_weights(weights_of(old).items(), version=6)
    module = LLMRLModule(model_config={"model_name_or_path": new, "dtype": "float32", "temperature": 0.7})
    probe = probe_tokens(module.vocab_size, 512)
    snapshot = WeightSnapshot(7, module.weight_views(), probe, module.score(probe))
    as_tensors = engine_module.as_tensors
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "as_tensors", lambda arrays: [(n, t) for n, t in as_tensors(arrays) if n != lost])
        with pytest.raises(WeightSyncError, match=r"log-probs of a probe differ by (\d|nan)"):
            load_and_verify(engine, snapshot, "float32")
    assert engine.weight_version == -1
    load_and_verify(engine, snapshot, "float32")
    assert engine.weight_version == 7


@pytest.mark.slow
def test_weights_that_the_learner_casts_are_those_that_the_engine_would_cast(tmp_path):
    old, new = (tiny_model(tmp_path / str(seed), "qwen2", seed=seed) for seed in (1, 2))
    module = LLMRLModule(model_config={"model_name_or_path": new, "dtype": "bfloat16", "temperature": 0.7})
    config = EngineConfig(old, dtype="bfloat16", max_context_tokens=512, num_threads=1, engine_kwargs=ENGINE_KWARGS)
    engine = make_engine("vllm", config)

    def loaded(weights) -> tuple[dict[str, torch.Tensor], np.ndarray]:
        engine.update_weights(weights.items(), version=1)
        (parameters,) = engine._llm.apply_model(copies_of_parameters)
        return parameters, engine.score(PROMPT)

    before, cast_by_engine, again = (loaded(weights_of(folder)) for folder in (old, new, old))
    cast_by_learner = loaded(module.weight_views(torch.bfloat16))
    assert_same_weights(again, before)
    assert_same_weights(cast_by_learner, cast_by_engine)
    assert abs(cast_by_learner[1] - before[1]).max() > 1
    engine.close()


def copies_of_parameters(model) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same_weights(some, others) -> None:
    """Bit by bit; at the end also what only the repacked copies of vLLM's CPU build can tell."""
    assert some[0].keys() == others[0].keys() and len(some[0]) > 10
    for name, parameter in some[0].items():
        # With AMX vLLM keeps biases of small layers in float32.
        assert parameter.dtype == others[0][name].dtype and torch.equal(parameter, others[0][name])
        assert parameter.dtype == torch.bfloat16 or name.endswith("bias")
    np.testing.assert_array_equal(some[1], others[1])


@pytest.mark.parametrize(("change", "message"), [
    (lambda w: w.pop("lm_head.weight"), r"lm_head\.weight: missing, expected: \(300, 64\)\."),
    (lambda w: w.update({"model.layers.2.mlp.up_proj.weight": np.zeros(1), "n": np.zeros(2)}),
     r"model\.layers\.2\.mlp\.up_proj\.weight: \(1,\), expected: no such weight; 1 more differ\."),
    (lambda w: w.update({"model.norm.weight": np.zeros(3, dtype=np.float32)}),
     r"model\.norm\.weight: \(3,\), expected: \(64,\)\."),
])  # fmt: skip
def test_wrong_weights_are_named_before_anything_is_loaded(engine, llama_folder, change, message):
    before = engine.score(PROMPT)
    weights = {name: np.zeros_like(array) for name, array in weights_of(llama_folder).items()}
    change(weights)
    with pytest.raises(ValueError, match=rf"^These are not the weights of the engine's model\. {message}$"):
        engine.update_weights(weights.items(), version=1)
    assert engine.weight_version == -1
    np.testing.assert_array_equal(engine.score(PROMPT), before)
