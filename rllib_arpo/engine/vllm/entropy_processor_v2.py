"""The entropy probe for vLLM's newer model runner (V2), which has logits processors of its own.

Imported by vLLM itself, and only where that runner is used. Not run on a GPU yet: the tests drive it through vLLM's own
sampler pipeline on the CPU, up to the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

from rllib_arpo.engine.entropy_windows import EntropyWindow, measure
from rllib_arpo.engine.vllm.entropy_processor import window_of


class EntropyProcessorV2(LogitsProcessor):
    """Measures the entropies of the requests that ask for it in `extra_args`; leaves the logits as they are.

    A request keeps its slot of the batch until it ends or is preempted, and the next occupant of the slot announces
    itself in `add_request`. Which token comes next is known on the host: without speculative decoding (refused in
    `engine_kwargs`) a request has one row, in the order of `idx_mapping_np`, and its length is exact.
    """

    def __init__(self, vllm_config, req_states: LogitsProcRequestState):
        self._prompt_len = req_states.prompt_len
        self._prefill_len = req_states.prefill_len
        self._windows: dict[int, EntropyWindow] = {}
        """Slot -> window; gone when it is full."""

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Whether the logits of this request are to be seen; while it runs, vLLM copies the batch's to float32."""
        # What is computed anew beyond the prompt was generated before the request was preempted.
        num_generated = int(self._prefill_len.np[req_idx] - self._prompt_len.np[req_idx])
        window = window_of(sampling_params, num_generated)
        self._windows.pop(req_idx, None)
        if window is not None:
            self._windows[req_idx] = window
        return window is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Before the temperature, for greedy requests too."""
        if self._windows:
            measure(list(self._rows(ctx)), logits)
        return logits

    def _rows(self, ctx: LogitsContext) -> Iterator[tuple[int, EntropyWindow, int]]:
        # The lengths are padded at the end when the batch is.
        for row, (slot, length) in enumerate(zip(ctx.idx_mapping_np, ctx.seq_lens_upper_bound_np, strict=False)):
            window = self._windows.get(int(slot))
            # vLLM drops what it samples before the last chunk of a prompt.
            if window is not None and length >= self._prefill_len.np[slot]:
                place = int(length - self._prompt_len.np[slot])
                yield row, window, place
                if place + 1 >= window.size:
                    del self._windows[int(slot)]
