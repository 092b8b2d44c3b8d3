"""The engine's log-probs and entropies in bf16 against transformers, the probe of its weights, and measuring itself.

Rounding has no target of its own. A forward pass of transformers in fp32 is the truth, and the engine, with the model
runner that vLLM chooses here, may be off by twice what transformers' own forward pass in bf16 is off by.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from rllib_arpo.engine import EngineConfig, make_engine
from rllib_arpo.engine.engine import Finished, GenerationRequest
from rllib_arpo.engine.entropy_windows import EntropyWindow, measure
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from rllib_arpo.weights.snapshot import PROBE_TOLERANCES, probe_tokens
from tests.engine.conftest import run
from tests.gpu.workbench import DEVICE, DTYPE, random_qwen3
from tests.helpers.entropy import token_entropy

CONTEXT_TOKENS = 512
PROMPT_TOKENS = 48
TEMPERATURES = (1.0, 0.7)
#: Largest error of the engine / error of transformers, both in bf16 and against fp32.
OF_TRANSFORMERS = 2.0
#: Log-probs [n] and entropies [n] of the generated tokens of each request.
Outputs = list[tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def engine(sizes, work):
    folder = random_qwen3(sizes.small, work)
    engine = make_engine("vllm", EngineConfig(folder, DTYPE, CONTEXT_TOKENS, engine_kwargs=sizes.engine_kwargs()))
    yield engine
    engine.close()


def test_log_probs_and_entropies_are_off_by_rounding_alone(engine, sizes, work, figures):
    rng = np.random.default_rng(0)
    requests = [
        GenerationRequest(
            str(i), rng.integers(engine.vocab_size, size=PROMPT_TOKENS + i).tolist(), sizes.probe_tokens + i,
            TEMPERATURES[i % 2], seed=i, record_entropies="all",
        )
        for i in range(sizes.probe_sequences)
    ]  # fmt: skip
    done = run(engine, *requests)
    finished = [done[request.request_id] for request in requests]
    ours = [(one.log_probs, one.entropies) for one in finished]
    folder = random_qwen3(sizes.small, work)
    exact, rounded = (transformers_outputs(folder, dtype, requests, finished) for dtype in ("float32", DTYPE))
    for kind, name in enumerate(("log-probs", "entropies")):
        error, of_transformers = mean_error(ours, exact, kind), mean_error(rounded, exact, kind)
        detail = {"nats": error, "nats_of_transformers": of_transformers}
        figures.add(
            f"{name}: error / that of transformers", error / of_transformers, at_most=OF_TRANSFORMERS, detail=detail
        )
        assert error < 0.1
    figures.add("model runner", "newer" if engine._llm.vllm_config.use_v2_model_runner else "older")


@torch.no_grad()
def transformers_outputs(
    folder: str, dtype: str, requests: Sequence[GenerationRequest], finished: Sequence[Finished]
) -> Outputs:
    """What a forward pass of transformers in `dtype` says of the generated tokens."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(DEVICE)
    outputs = []
    for request, end in zip(requests, finished, strict=True):
        ids = torch.tensor([[*request.prompt_token_ids, *end.token_ids.tolist()]], device=DEVICE)
        first = len(request.prompt_token_ids)
        log_probs = (model(ids).logits[0, first - 1 : -1].double() / request.temperature).log_softmax(-1)
        of_tokens = log_probs.gather(1, ids[0, first:, None])[:, 0]
        entropies = -(log_probs.exp() * log_probs).sum(-1)
        outputs.append((of_tokens.cpu().numpy(), entropies.cpu().numpy()))
    return outputs


def mean_error(outputs: Outputs, exact: Outputs, kind: int) -> float:
    pairs = zip(outputs, exact, strict=True)
    return float(np.abs(np.concatenate([got[kind] - want[kind] for got, want in pairs])).mean())


def test_the_probe_sees_weights_that_have_not_arrived_and_passes_those_that_have(engine, sizes, work, figures):
    settings = {"model_name_or_path": random_qwen3(sizes.small, work, seed=3), "dtype": DTYPE, "temperature": 1.0}
    module = LLMRLModule(model_config=settings).to(DEVICE)
    probe, limit = probe_tokens(module.vocab_size, CONTEXT_TOKENS), PROBE_TOLERANCES[DTYPE]

    def difference() -> float:
        return float(np.abs(engine.score(probe.tolist()) - module.score(probe)).max())

    figures.add("difference before the weights arrive", difference(), "nats", at_least=limit)
    engine.update_weights(module.weight_views().items(), version=1)
    figures.add("difference when they have arrived", difference(), "nats", at_most=limit)


def test_measuring_does_not_wait_for_the_device():
    logits = 3 * torch.randn(200, 5000, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    windows = [EntropyWindow(0.5 + key / 100, 2, ("exact", "top_k")[key % 2]) for key in range(150)]
    torch.cuda.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        measured = [
            measure([(row + 7, window, place) for row, window in enumerate(windows)], logits) for place in range(3)
        ]
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    assert measured[2] is None
    exact = [token_entropy(logits[key + 7], 0.5 + key / 100).item() for key in range(0, 150, 2)]
    for entropies in measured[:2]:
        assert entropies[7:157:2].tolist() == pytest.approx(exact, abs=1e-4)
