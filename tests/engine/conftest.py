"""Tiny models, and one engine for all tests that need no other settings."""

import functools

import numpy as np
import pytest
import torch

from rllib_arpo.engine import EngineConfig, make_engine
from rllib_arpo.engine.engine import Finished, GenerationRequest
from tests.helpers.models import tiny_model

ENGINE_KWARGS = {"kv_cache_memory_bytes": 16 << 20}


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory) -> str:
    """A Llama with tied embeddings; V = 300 is neither the tokenizer's size nor a multiple of vLLM's padding."""
    return tiny_model(tmp_path_factory.mktemp("llama"), "llama", vocab_size=300, seed=0)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> tuple[str, str]:
    """Two tied models that differ in nothing but their weights."""
    return tuple(tiny_model(tmp_path_factory.mktemp("tied"), seed=seed) for seed in (1, 2))


def start_engine(folder: str, weight_transfer: str | None = None, **engine_kwargs):
    kwargs = {"engine_kwargs": ENGINE_KWARGS | engine_kwargs, "weight_transfer": weight_transfer}
    return make_engine("vllm", EngineConfig(folder, dtype="float32", max_context_tokens=512, num_threads=1, **kwargs))


@pytest.fixture(scope="package")
def llama_engine(llama_folder):
    """Not for the whole session: it has a process group, and tests of learners make their own."""
    engine = start_engine(llama_folder)
    yield engine
    engine.close()


@pytest.fixture
def engine(llama_engine):
    """An engine without requests and with the weights that it was made with, of version -1."""
    assert not llama_engine.has_unfinished()
    return llama_engine


def run(engine, *requests: GenerationRequest) -> dict[str, Finished]:
    """Runs the requests together to their ends."""
    for request in requests:
        engine.submit(request)
    finished = {}
    while engine.has_unfinished():
        finished |= {event.request_id: event for event in engine.step() if isinstance(event, Finished)}
    return finished


def run_one(engine, prompt: list[int], max_tokens: int = 8, **settings) -> Finished:
    return run(engine, GenerationRequest("one", prompt, max_tokens, **settings))["one"]


@functools.cache
def _reference_model(folder: str):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@torch.no_grad()
def reference_logits(folder: str, prompt: list[int], generated) -> torch.Tensor:
    """The logits [n, V] float64 at the place of each generated token, by a plain Hugging Face forward pass."""
    ids = torch.tensor([[*prompt, *map(int, generated)]])
    return _reference_model(folder)(ids).logits[0, len(prompt) - 1 : -1].double()


def reference(folder: str, prompt: list[int], generated, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """The log-probs and the entropies [n] of the generated tokens by a plain Hugging Face forward pass."""
    log_probs = torch.log_softmax(reference_logits(folder, prompt, generated) / temperature, dim=-1)
    sampled = log_probs.gather(1, torch.tensor([[int(token)] for token in generated]))[:, 0]
    return sampled.numpy(), -(log_probs.exp() * log_probs).sum(-1).numpy()


def reference_top_k_entropies(folder: str, prompt: list[int], generated, temperature: float) -> np.ndarray:
    """`-sum p ln p` [n] over the ten likeliest tokens at the place of each generated token."""
    logits = reference_logits(folder, prompt, generated)
    top = torch.log_softmax(logits / temperature, dim=-1).sort(descending=True).values[:, :10]
    return -(top.exp() * top).sum(-1).numpy()
