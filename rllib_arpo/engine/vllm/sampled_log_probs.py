"""Log-probs of the sampled tokens alone."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.sampler import Sampler


def skip_ranks(worker: Any) -> None:
    """Runs in vLLM's worker: makes it return log-probs without the rank of the token, which nothing reads.

    vLLM counts, for every sampled token, how many tokens of the vocabulary are likelier; on a CPU that takes as long as
    the log-probs themselves. The newer model runner has its own sampler, which this function does not change.
    """
    sampler = getattr(worker.model_runner, "sampler", None)
    if isinstance(sampler, Sampler):
        sampler.gather_logprobs = _gather


def _gather(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
    """Like `Sampler.gather_logprobs`, but the rank is 0 if the caller asks for no other tokens."""
    if num_logprobs:
        return Sampler.gather_logprobs(logprobs, num_logprobs, token_ids)
    column = token_ids.unsqueeze(-1)
    return LogprobsTensors(column.to(torch.int32), logprobs.gather(-1, column), torch.zeros_like(token_ids))
