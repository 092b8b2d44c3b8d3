"""The engine in bf16, with the model runner that vLLM chooses here: log-probs, entropies and the probe of its weights.

Rounding has no target of its own. A forward pass of transformers in fp32 is the truth, and the engine may be off by
twice what transformers' own forward pass in bf16 is off by.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from release.gpu_parts.engines import DTYPE, engine_kwargs
from release.gpu_parts.models import random_qwen2
from release.gpu_parts.report import Report
from release.gpu_parts.sizes import Sizes
from rllib_arpo.engine import EngineConfig, make_engine
from rllib_arpo.engine.engine import Engine, Finished, GenerationRequest
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from rllib_arpo.weights.snapshot import PROBE_TOLERANCES, probe_tokens

if TYPE_CHECKING:
    from rllib_arpo.engine.vllm.engine import VLLMEngine

CONTEXT_TOKENS = 512
PROMPT_TOKENS = 48
TEMPERATURES = (1.0, 0.7)
#: Largest error of the engine / error of transformers, both in bf16 and against fp32.
OF_TRANSFORMERS = 2.0


def run(sizes: Sizes, report: Report, work: Path) -> None:
    folder, other = (random_qwen2(sizes.small, work, seed) for seed in (0, 1))
    config = EngineConfig(folder, DTYPE, CONTEXT_TOKENS, engine_kwargs=engine_kwargs(sizes))
    engine: VLLMEngine = make_engine("vllm", config)
    try:
        report.add("model runner", "newer" if engine._llm.vllm_config.use_v2_model_runner else "older")
        _compare_outputs(engine, folder, sizes, report)
        _probe_weights(engine, other, report)
    finally:
        engine.close()


def _compare_outputs(engine: Engine, folder: str, sizes: Sizes, report: Report) -> None:
    rng = np.random.default_rng(0)
    requests = [
        GenerationRequest(
            str(i), rng.integers(engine.vocab_size, size=PROMPT_TOKENS + i).tolist(), sizes.probe_tokens + i,
            TEMPERATURES[i % 2], seed=i, record_entropies="all",
        )
        for i in range(sizes.probe_sequences)
    ]  # fmt: skip
    finished = _generate(engine, requests)
    ours = [(one.log_probs, one.entropies) for one in finished]
    exact, rounded = (_reference(folder, dtype, requests, finished) for dtype in (torch.float32, torch.bfloat16))
    for kind, name in enumerate(("log-probs", "entropies")):
        error, of_transformers = _mean_error(ours, exact, kind), _mean_error(rounded, exact, kind)
        detail = {"nats": error, "nats_of_transformers": of_transformers}
        ratio = error / of_transformers
        report.add(f"{name}: error / that of transformers", ratio, at_most=OF_TRANSFORMERS, detail=detail)


def _generate(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Finished]:
    """Runs the requests together; returns their results in order."""
    for request in requests:
        engine.submit(request)
    finished: dict[str, Finished] = {}
    while engine.has_unfinished():
        finished |= {event.request_id: event for event in engine.step() if isinstance(event, Finished)}
    return [finished[request.request_id] for request in requests]


#: Log-probs [n] and entropies [n] of the generated tokens of each request.
Outputs = list[tuple[np.ndarray, np.ndarray]]


@torch.no_grad()
def _reference(
    folder: str, dtype: torch.dtype, requests: Sequence[GenerationRequest], finished: Sequence[Finished]
) -> Outputs:
    """What a forward pass of transformers in `dtype` says of the generated tokens."""
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    outputs = []
    for request, end in zip(requests, finished, strict=True):
        ids = torch.tensor([[*request.prompt_token_ids, *end.token_ids.tolist()]], device=device)
        first = len(request.prompt_token_ids)
        log_probs = (model(ids).logits[0, first - 1 : -1].double() / request.temperature).log_softmax(-1)
        of_tokens = log_probs.gather(1, ids[0, first:, None])[:, 0]
        entropies = -(log_probs.exp() * log_probs).sum(-1)
        outputs.append((of_tokens.cpu().numpy(), entropies.cpu().numpy()))
    return outputs


def _mean_error(outputs: Outputs, exact: Outputs, kind: int) -> float:
    pairs = zip(outputs, exact, strict=True)
    return float(np.abs(np.concatenate([got[kind] - want[kind] for got, want in pairs])).mean())


def _probe_weights(engine: Engine, other: str, report: Report) -> None:
    """The probe of `rllib_arpo.weights.snapshot` sees weights that have not arrived, and passes those that have."""
    settings = {"model_name_or_path": other, "dtype": DTYPE, "temperature": 1.0}
    module = LLMRLModule(model_config=settings).to("cuda" if torch.cuda.is_available() else "cpu")
    probe = probe_tokens(module.vocab_size, CONTEXT_TOKENS)

    def difference() -> float:
        return float(np.abs(engine.score(probe.tolist()) - module.score(probe)).max())

    limit = PROBE_TOLERANCES[DTYPE]
    report.add("probe of weights that have not arrived", difference(), "nats", at_least=limit)
    engine.update_weights(module.weight_views().items(), version=1)
    report.add("probe of weights that have arrived", difference(), "nats", at_most=limit)
