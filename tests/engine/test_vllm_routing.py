"""The experts that an engine and a learner choose for the same tokens; `-s` prints how often they differ."""

import numpy as np
import pytest
import torch

from rllib_arpo.engine import EngineConfig, make_engine
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from tests.engine.conftest import ENGINE_KWARGS
from tests.helpers.models import tiny_model

#: Texts, and tokens of each.
NUM_TEXTS, NUM_TOKENS = 10, 100
LAYERS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    sizes = {"num_experts": 32, "num_experts_per_tok": 8, "moe_intermediate_size": 64}
    return tiny_model(tmp_path_factory.mktemp("mixture"), "qwen3_moe", num_layers=LAYERS, seed=1, **sizes)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounding_alone_makes_engine_and_learner_differ(folder, dtype):
    engine = make_engine("vllm", EngineConfig(folder, dtype, 512, num_threads=1, engine_kwargs=ENGINE_KWARGS))
    module = LLMRLModule(model_config={"model_name_or_path": folder, "dtype": dtype, "temperature": 1.0})
    of_engine, of_learner = [], []
    engine._llm.collective_rpc(capture, args=(of_engine,))
    for layer in module.causal_lm.model.layers:
        layer.mlp.gate.register_forward_hook(lambda _router, _inputs, outputs: of_learner.append(outputs[2]))

    rng, differ, gaps = np.random.default_rng(0), [], []
    for _ in range(NUM_TEXTS):
        text = rng.integers(0, 256, NUM_TOKENS, dtype=np.int32)
        gaps.append(np.abs(engine.score(text.tolist()) - module.score(text)))
        chosen = [
            torch.stack([ids[:NUM_TOKENS] for ids in side[-LAYERS:]]) for side in (of_engine[:LAYERS], of_learner)
        ]
        differ.append((chosen[0].sort().values != chosen[1].sort().values).any(-1).numpy())
        of_engine.clear(), of_learner.clear()
    engine.close()
    choices, tokens, gap = np.mean(differ), np.any(differ, axis=1).mean(), np.mean(gaps)
    print(f"{dtype}: {choices:.3f} of the choices, {tokens:.3f} of the tokens in some layer; {gap:.2g} nats a token")
    if dtype == "float32":
        assert (choices, tokens) == (0, 0) and gap < 1e-5
    else:
        assert 0 < choices < 0.5 and gap < 0.5


@pytest.mark.slow
def test_an_engine_of_experts_works_beside_one_of_a_dense_model(folder, tmp_path):
    """In one process, where the groups of processes that vLLM made for the dense model have none for experts."""
    text = list(range(50))
    dense = make_engine("vllm", EngineConfig(tiny_model(tmp_path), "float32", 512, engine_kwargs=ENGINE_KWARGS))
    before = dense.score(text)
    experts = make_engine("vllm", EngineConfig(folder, "float32", 512, engine_kwargs=ENGINE_KWARGS))
    module = LLMRLModule(model_config={"model_name_or_path": folder, "dtype": "float32", "temperature": 1.0})
    np.testing.assert_allclose(experts.score(text), module.score(np.array(text, np.int32)), atol=1e-4)
    np.testing.assert_array_equal(dense.score(text), before)
    experts.close()
    np.testing.assert_array_equal(dense.score(text), before)
    dense.close()


def capture(worker, chosen: list[torch.Tensor]) -> None:
    """Runs in vLLM's worker, here in this process: `chosen` gets the experts of each step, layer after layer."""
    from vllm.model_executor.layers.fused_moe.layer import MoERunner

    for module in worker.model_runner.get_model().modules():
        if isinstance(module, MoERunner):
            module.router.set_capture_fn(lambda ids: chosen.append(ids.clone()))
