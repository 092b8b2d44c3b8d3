"""The entropy probe inside vLLM: logits processors that measure the logits and leave them as they are."""

from __future__ import annotations

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from rllib_arpo.engine.entropy_windows import EntropyWindow, measure, open_window

_GREEDY_BELOW = 1e-5
"""vLLM decodes greedily at temperatures below this."""


class EntropyProcessor(LogitsProcessor):
    """Measures the entropies of the requests that ask for it in `extra_args`; leaves the logits as they are."""

    def __init__(self, vllm_config, device: torch.device, is_pin_memory: bool):
        self._windows: dict[int, EntropyWindow] = {}
        """Batch row -> window."""

    def is_argmax_invariant(self) -> bool:
        """False: the other kind is skipped for greedy requests and sees logits divided by the temperature."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._windows, batch_update, self._open)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        measure(self._windows.items(), logits)
        return logits

    @staticmethod
    def _open(params: SamplingParams, _prompt: list[int] | None, generated: list[int]) -> EntropyWindow | None:
        if not params.extra_args:
            return None
        temperature = params.temperature if params.temperature >= _GREEDY_BELOW else 1.0
        return open_window(temperature=temperature, generated=generated, **params.extra_args["entropy_window"])
