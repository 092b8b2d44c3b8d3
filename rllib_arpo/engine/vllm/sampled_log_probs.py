"""Log-probs of the sampled tokens alone."""

from __future__ import annotations

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.sampler import Sampler


def skip_ranks(worker) -> None:
    """Runs in vLLM's worker: log-probs come without the rank of the token among all others, which nobody reads.

    vLLM counts, for every sampled token, how many of the vocabulary are likelier; on a CPU that takes as long as the
    log-probs themselves. The newer model runner has a sampler of its own, which is left as it is.
    """
    sampler = getattr(worker.model_runner, "sampler", None)
    if isinstance(sampler, Sampler):
        sampler.gather_logprobs = _gather


def _gather(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
    """As `Sampler.gather_logprobs`; the rank of a token is 0 where no others are asked for."""
    if num_logprobs:
        return Sampler.gather_logprobs(logprobs, num_logprobs, token_ids)
    column = token_ids.unsqueeze(-1)
    return LogprobsTensors(column.to(torch.int32), logprobs.gather(-1, column), torch.zeros_like(token_ids))
