"""The doctor's memory of the LM head, against the memory that torch allocates on the CPU."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from rllib_arpo.learner.memory_budget import head_terms
from rllib_arpo.policy.lm_head import chunked_log_probs
from tests.learner.test_memory_budget import LEARNER, MODEL


def peak_bytes(function) -> int:
    """The largest sum of what torch holds at a time while `function` runs, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(("num_words", "size", "chunk"), [(4096, 64, 128), (8192, 512, 16)])
def test_the_head_holds_what_the_doctor_counts(dtype, trained, num_words, size, chunk):
    num_tokens = 2 * chunk + 1
    hidden = torch.randn(num_tokens, size).requires_grad_()
    weight = torch.randn(num_words, size).to(torch.float32 if trained else dtype).requires_grad_(trained)
    targets = torch.arange(num_tokens)

    def forward_and_backward() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16, cache_enabled=False):
            log_probs, entropies = chunked_log_probs(hidden, targets, weight, chunk_size=chunk)
        (log_probs - entropies).sum().backward()

    measured = peak_bytes(forward_and_backward)
    shape = replace(MODEL, vocab_size=num_words, hidden_size=size, adapter_parameters=0 if trained else 1)
    learner = replace(LEARNER, gpus=0.0, compute_bytes=dtype.itemsize, head_chunk=chunk, tokens_per_pass=num_tokens)
    counted = sum(term.bytes for term in head_terms(shape, learner))
    # The gradient of the hidden states belongs to the layers.
    assert measured - hidden.nbytes == pytest.approx(counted, rel=0.02)
