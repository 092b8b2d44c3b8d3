"""The entropy probe inside vLLM: logits processors that measure the logits and leave them as they are."""

from __future__ import annotations

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

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
