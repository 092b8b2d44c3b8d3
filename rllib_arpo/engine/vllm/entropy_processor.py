"""The entropy probe inside vLLM: logits processors that measure the logits and leave them as they are."""

from __future__ import annotations

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from rllib_arpo.engine.entropy_windows import EntropyStore, EntropyWindow, measure, open_window

#: vLLM decodes greedily at temperatures below this.
_GREEDY_BELOW = 1e-5


class EntropyProcessor(LogitsProcessor):
    """Measures the entropies of the requests that ask for it in `extra_args`; leaves the logits as they are."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        #: Batch row -> window, and vLLM's own list of the request's tokens, which grows.
        self._rows: dict[int, tuple[EntropyWindow, list[int]]] = {}
        self._store = EntropyStore()

    def is_argmax_invariant(self) -> bool:
        """False: vLLM skips the other kind for greedy requests, and gives it logits divided by the temperature."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._window_and_tokens)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        rows = ((row, window, len(generated)) for row, (window, generated) in self._rows.items())
        measure(self._store, rows, logits)
        return logits

    def _window_and_tokens(
        self, params: SamplingParams, _prompt: list[int] | None, generated: list[int]
    ) -> tuple[EntropyWindow, list[int]] | None:
        window = window_of(self._store, params, len(generated))
        return None if window is None else (window, generated)


def window_of(store: EntropyStore, params: SamplingParams, num_generated: int) -> EntropyWindow | None:
    """The entropy window that a request asks for in `extra_args`; None if it asks for none or the window is full."""
    if not params.extra_args:
        return None
    temperature = params.temperature if params.temperature >= _GREEDY_BELOW else 1.0
    window = params.extra_args["entropy_window"]
    return open_window(store, **window, temperature=temperature, num_generated=num_generated)
