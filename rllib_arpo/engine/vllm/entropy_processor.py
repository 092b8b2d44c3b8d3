"""The entropy probe inside vLLM: a logits processor that measures, and the entropies that leave a step with its tokens.

vLLM copies log-probs and ranks to pinned memory on a stream of its own, and waits for that copy's event when it needs
them, also while the next step is running (`AsyncGPUModelRunnerOutput` and `AsyncOutput`, the outputs of its two model
runners). Nothing reads the ranks. So the entropies take their place, and need neither a copy nor a wait of their own.
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
    """Measures the entropies of the requests that ask for it in `extra_args`; leaves the logits as they are.

    Attributes:
        measured: in the step whose logits came last, see `measure`; whoever takes them sets None.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        #: Batch row -> window, and vLLM's own list of the request's tokens, which grows. While the engine runs a step
        #: ahead, it ends with a placeholder for the token of the step before.
        self._rows: dict[int, tuple[EntropyWindow, list[int]]] = {}
        self.measured: torch.Tensor | None = None

    def is_argmax_invariant(self) -> bool:
        """False: vLLM skips the other kind for greedy requests, and gives it logits divided by the temperature."""
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
        num_generated: the tokens of its own with which the request joins the batch: some if it was preempted.
    """
    if not params.extra_args:
        return None
    temperature = params.temperature if params.temperature >= _GREEDY_BELOW else 1.0
    window = EntropyWindow(temperature, **params.extra_args["entropy_window"])
    return window if num_generated < window.size else None


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
