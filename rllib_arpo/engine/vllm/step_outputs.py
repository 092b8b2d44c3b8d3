"""What leaves a step of the model beside its tokens: their log-probs, and the entropies in the place of their ranks.

vLLM copies log-probs and ranks to pinned memory on a stream of its own, and waits for that copy's event when it needs
them, also while the next step is running (`AsyncGPUModelRunnerOutput` and `AsyncOutput`, the outputs of its two model
runners). Nothing reads the ranks. So the entropies take their place, and need neither a copy nor a wait of their own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.sampler import Sampler


def send_entropies(worker: Any) -> None:
    """Runs in vLLM's worker: from now on `LogprobsTensors.selected_token_ranks` of a step holds [rows] entropies.

    They are float32 nats; NaN, or anything where a step measured none, for tokens outside of their requests' windows.
    """
    runner = worker.model_runner
    sampler = getattr(runner, "sampler", None)
    if isinstance(sampler, Sampler):
        sampler.gather_logprobs = partial(_gather, _probe(runner.input_batch.logitsprocs.all))
        # The probe reads the number of a request's tokens, not the tokens: otherwise vLLM would wait for those of the
        # last step before it samples.
        runner.input_batch.logitsprocs_need_output_token_ids = False
    elif sampler is not None:
        runner.sampler = SamplerWithEntropies(sampler)


class SamplerWithEntropies:
    """The sampler of vLLM's newer model runner, in all but this."""

    def __init__(self, sampler: Any):
        self._sampler = sampler
        self._probe = _probe(sampler.logits_processors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __call__(self, logits: torch.Tensor, input_batch: Any) -> Any:
        output = self._sampler(logits, input_batch)
        output.logprobs_tensors = _with_entropies(output.logprobs_tensors, self._probe)
        return output


def _probe(processors: Any) -> Any:
    """Ours of vLLM's logits processors."""
    (probe,) = (processor for processor in processors if hasattr(processor, "measured"))
    return probe


def _gather(probe: Any, logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
    """`Sampler.gather_logprobs`, of sampled tokens or of a prompt's.

    For the tokens alone it does not count how many of the vocabulary are likelier, which on a CPU takes as long as the
    log-probs themselves.
    """
    if num_logprobs:
        tensors = Sampler.gather_logprobs(logprobs, num_logprobs, token_ids)
    else:
        column = token_ids.unsqueeze(-1)
        tensors = LogprobsTensors(column.to(torch.int32), logprobs.gather(-1, column), torch.zeros_like(token_ids))
    return _with_entropies(tensors, probe)


def _with_entropies(tensors: LogprobsTensors, probe: Any) -> LogprobsTensors:
    entropies, probe.measured = probe.measured, None
    return tensors if entropies is None else tensors._replace(selected_token_ranks=entropies)
