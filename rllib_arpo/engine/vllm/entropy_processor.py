"""The entropy probe inside vLLM: a logits processor measures entropies, and they leave a step with its tokens.

vLLM copies log-probs and ranks to pinned memory on a stream of its own, and waits for that copy's event when it needs
them, also while the next step is running (`AsyncGPUModelRunnerOutput` and `AsyncOutput`, the outputs of its two model
runners). Nothing reads the ranks, so the entropies take their place, and need neither a copy nor a wait of their own.
"""

from functools import partial
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates
from vllm.v1.sample.sampler import Sampler

from rllib_arpo.engine.entropy_windows import EntropyWindow, measure

#: vLLM decodes greedily at temperatures below this.
_GREEDY_BELOW = 1e-5


class EntropyProcessor(LogitsProcessor):
    """Measures the entropies of the requests that ask for it in `extra_args`; does not change the logits.

    Attributes:
        measured: the result of `measure` in the last step; whoever takes it sets None.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        #: Batch row -> window, and vLLM's own list of the request's tokens, which grows. While the engine runs a step
        #: ahead, the list ends with a placeholder for the previous step's token.
        self._rows: dict[int, tuple[EntropyWindow, list[int]]] = {}
        self.measured: torch.Tensor | None = None

    def is_argmax_invariant(self) -> bool:
        """False: vLLM skips invariant processors for greedy requests, and runs them after the temperature."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._window_and_tokens)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        rows = ((row, window, len(generated)) for row, (window, generated) in self._rows.items())
        self.measured = measure(rows, logits)
        return logits

    def _window_and_tokens(
        self, params: SamplingParams, _prompt: list[int] | None, generated: list[int]
    ) -> tuple[EntropyWindow, list[int]] | None:
        window = window_of(params, len(generated))
        return None if window is None else (window, generated)


def window_of(params: SamplingParams, num_generated: int) -> EntropyWindow | None:
    """The entropy window that a request asks for in `extra_args`; None if it asks for none or the window is full.

    Args:
        num_generated: how many tokens the request had generated when it joined the batch; above 0 if it was preempted.
    """
    if not params.extra_args:
        return None
    temperature = params.temperature if params.temperature >= _GREEDY_BELOW else 1.0
    window = EntropyWindow(temperature, **params.extra_args["entropy_window"])
    return window if num_generated < window.size else None


def send_entropies(worker: Any) -> None:
    """Runs in vLLM's worker: from now on `LogprobsTensors.selected_token_ranks` of a step holds [rows] entropies.

    They are float32 nats. Outside a request's window they are NaN, or anything if the step measured none.
    """
    runner = worker.model_runner
    sampler = getattr(runner, "sampler", None)
    if isinstance(sampler, Sampler):
        sampler.gather_logprobs = partial(_gather, _probe(runner.input_batch.logitsprocs.all))
        # The probe only counts a request's tokens. If it read them, vLLM would wait for the last step's tokens before
        # it samples.
        runner.input_batch.logitsprocs_need_output_token_ids = False
    elif sampler is not None:
        runner.sampler = SamplerWithEntropies(sampler)


class SamplerWithEntropies:
    """Wraps the sampler of vLLM's newer model runner, and adds entropies to its output."""

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
    """Finds our probe among vLLM's logits processors."""
    (probe,) = (processor for processor in processors if hasattr(processor, "measured"))
    return probe


def _gather(probe: Any, logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
    """Does the work of `Sampler.gather_logprobs`, for sampled tokens or a prompt's.

    If no other tokens are requested, it computes no ranks, which on a CPU take as long as the log-probs themselves.
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
