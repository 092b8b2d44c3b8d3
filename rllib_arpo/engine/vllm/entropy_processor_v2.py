"""The entropy probe for vLLM's newer model runner (V2), which has its own kind of logits processors.

vLLM itself imports this module, and only if it uses that runner. It has not run on a GPU yet: the tests drive it
through vLLM's own sampler pipeline on the CPU, up to the kernels.
"""

from collections.abc import Iterator

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

from rllib_arpo.engine.entropy_windows import EntropyWindow, measure
from rllib_arpo.engine.vllm.entropy_processor import window_of


class EntropyProcessorV2(LogitsProcessor):
    """Measures the entropies of the requests that ask for it in `extra_args`; does not change the logits.

    A request keeps its slot of the batch until it ends or is preempted; vLLM then announces the slot's next request
    by `add_request`. The host knows which token comes next: without speculative decoding (refused in
    `engine_kwargs`) a request has one row, in the order of `idx_mapping_np`, and its length is exact, also while the
    engine runs a step ahead.

    Attributes:
        measured: the result of `measure` in the last step; whoever takes it sets None.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState):
        self._prompt_len = req_states.prompt_len
        self._prefill_len = req_states.prefill_len
        #: Slot -> window; removed when it is full.
        self._windows: dict[int, EntropyWindow] = {}
        self.measured: torch.Tensor | None = None

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Whether the probe needs this request's logits; while it runs, vLLM copies the batch's logits to float32."""
        # Tokens beyond the prompt that vLLM computes again were generated before it preempted the request.
        num_generated = int(self._prefill_len.np[req_idx] - self._prompt_len.np[req_idx])
        window = window_of(sampling_params, num_generated)
        self._windows.pop(req_idx, None)
        if window is not None:
            self._windows[req_idx] = window
        return window is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """vLLM calls it before it applies the temperature, also for greedy requests."""
        self.measured = measure(self._rows(ctx), logits) if self._windows else None
        return logits

    def _rows(self, ctx: LogitsContext) -> Iterator[tuple[int, EntropyWindow, int]]:
        # If the batch is padded at the end, so are the lengths.
        for row, (slot, length) in enumerate(zip(ctx.idx_mapping_np, ctx.seq_lens_upper_bound_np, strict=False)):
            window = self._windows.get(int(slot))
            # vLLM drops the tokens that it samples before the last chunk of a prompt.
            if window is not None and length >= self._prefill_len.np[slot]:
                position = int(length - self._prompt_len.np[slot])
                yield row, window, position
                if position + 1 >= window.size:
                    del self._windows[int(slot)]
