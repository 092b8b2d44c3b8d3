"""The vLLM engine: the only file that imports vLLM (0.26 to 0.32; the CPU build and the CUDA build alike).

vLLM runs inside this process (`LLMEngine` without its engine-core process), so that one thread advances all requests
token by token and sees each of them between two tokens.
"""

from __future__ import annotations

import os

# vLLM reads these when it is imported or when an engine is built.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
# The newer model runner has another interface for logits processors.
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
# At WARNING each engine prints some twenty lines that a user cannot act on.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import dataclasses
import difflib
import gc
import itertools
import weakref
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import torch
from vllm.platforms import current_platform

if current_platform.is_cpu():
    # vLLM compiles the rank of the sampled token, which nobody reads here: a C++ compiler and up to 17 s at start-up.
    current_platform.simple_compile_backend = "eager"

from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from rllib_arpo.engine.checkpoint_names import causal_lm_config, check_shapes, expected_shapes
from rllib_arpo.engine.engine import EngineConfig, EngineEvent, EntropyReady, Finished, GenerationRequest
from rllib_arpo.engine.entropy_windows import NO_ENTROPIES, EntropyWindow, measure, open_window, take_entropies

_GREEDY_BELOW = 1e-5
"""vLLM decodes greedily at temperatures below this."""
_KEYS = itertools.count()


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


def _logits_scale(model: torch.nn.Module) -> float:
    """Runs in vLLM's worker: what the model's logits are multiplied by (1 for most models)."""
    return model.logits_processor.scale


def _set_logits_scale(scale: float, model: torch.nn.Module) -> None:
    """Runs in vLLM's worker."""
    model.logits_processor.scale = scale


@dataclasses.dataclass(slots=True)
class _Running:
    """A request that is not finished, and what it has generated so far; `entropies` is None until they are taken."""

    request: GenerationRequest
    key: int
    token_ids: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    entropies: np.ndarray | None = None
    num_cached_tokens: int = 0


_LIVE_ENGINES: weakref.WeakSet[VLLMEngine] = weakref.WeakSet()


class VLLMEngine:
    """An engine on vLLM. Must be built, stepped and closed by one thread.

    Log-probs and entropies are of the distribution that is sampled from, `softmax(logits / temperature)` in float32;
    for greedy requests (temperature 0) at temperature 1.

    `engine_kwargs` are vLLM's `EngineArgs`. vLLM seeds Python's, NumPy's and torch's global generators with
    `config.seed`; requests without a seed of their own draw from them.
    """

    def __init__(self, config: EngineConfig):
        """Loads the model and generates one token, so that the first request does not pay for start-up.

        Raises:
            ValueError: the model is missing or not a causal LM, or `engine_kwargs` has a key that is not to be set.
        """
        self.vocab_size = int(causal_lm_config(config.model_name_or_path).get_text_config().vocab_size)
        self.weight_version = -1
        self._config = config
        self._running: dict[str, _Running] = {}
        self._expected: dict[str, tuple[int, ...]] | None = None
        self._owns_process_group = not torch.distributed.is_initialized()
        self._llm: LLMEngine | None = self._build(_engine_args(config))
        _LIVE_ENGINES.add(self)
        self._warm_up()

    def _build(self, arguments: EngineArgs) -> LLMEngine:
        set_num_threads = torch.set_num_threads
        if self._config.num_threads is not None:
            # OMP_NUM_THREADS is read once, when torch is loaded, and Ray sets it to the actor's number of CPUs.
            set_num_threads(self._config.num_threads)
        try:
            return LLMEngine.from_engine_args(arguments)
        finally:
            # vLLM's CPU worker replaces it by a function that does nothing, for the learner in this process too.
            torch.set_num_threads = set_num_threads

    def _warm_up(self) -> None:
        self.submit(GenerationRequest("warm-up", [0], max_tokens=1, entropy_window=1, stop=("\0",)))
        while self._running:
            self.step()

    def submit(self, request: GenerationRequest) -> None:
        """Queues a request.

        Raises:
            ValueError: the id is in use, or the request is not one that can be run.
        """
        if request.request_id in self._running:
            raise ValueError(f"The request id {request.request_id!r} is in use.")
        _check_prompt(request, self._config.max_context_tokens, self.vocab_size)
        running = _Running(request, next(_KEYS), entropies=None if request.entropy_window else NO_ENTROPIES)
        self._llm.add_request(request.request_id, _token_prompt(request.prompt_token_ids), _sampling_params(running))
        self._running[request.request_id] = running

    def step(self) -> list[EngineEvent]:
        if not self._running:
            return []
        outputs = [(self._running[output.request_id], output) for output in self._llm.step()]
        for running, output in outputs:
            _append(running, output)
        self._collect_entropies(outputs)
        events: list[EngineEvent] = []
        for running, output in outputs:
            events += self._events(running, output)
        return events

    def has_unfinished(self) -> bool:
        return bool(self._running)

    def cancel(self, request_id: str) -> None:
        running = self._running.pop(request_id, None)
        if running is not None:
            self._llm.abort_request([request_id])
            if running.entropies is None:
                self._llm.collective_rpc(take_entropies, args=([(running.key, 0)],))

    def update_weights(self, weights: Iterable[tuple[str, np.ndarray]], version: int) -> None:
        """Replaces all weights and drops the prefix cache. The names and shapes are checked before anything is loaded.

        Raises:
            ValueError: a name is missing or unknown, or a shape is wrong; the engine goes on with its old weights.
            RuntimeError: requests are still running.
        """
        if self._running:
            raise RuntimeError(f"The engine's weights cannot change while {len(self._running)} requests are running.")
        if self._expected is None:
            self._expected = expected_shapes(self._config.model_name_or_path)
        arrays = dict(weights)
        check_shapes({name: array.shape for name, array in arrays.items()}, self._expected)
        tensors: Iterable = _as_tensors(arrays)
        if self._llm.vllm_config.parallel_config.world_size > 1:
            tensors = list(tensors)  # pickled for the worker processes
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not drop its prefix cache: old and new weights would mix.")
        self.weight_version = version

    def score(self, token_ids: list[int], temperature: float = 1.0) -> np.ndarray:
        """Log-probs [n - 1] float32 of token_ids[1:] at a temperature > 0, without sampling; n < max_context_tokens.

        Raises:
            RuntimeError: requests are running (the temperature is applied to the model's own logits).
        """
        if self._running:
            raise RuntimeError("The engine cannot score tokens while requests are running.")
        if len(token_ids) < 2:
            return np.zeros(0, dtype=np.float32)
        # vLLM knows no temperature for the log-probs of a prompt.
        scale = self._llm.apply_model(_logits_scale)[0]
        self._llm.apply_model(partial(_set_logits_scale, scale / temperature))
        try:
            params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
            self._llm.add_request("score", _token_prompt(token_ids), params)
            outputs = []
            while self._llm.has_unfinished_requests():
                outputs += self._llm.step()
        finally:
            self._llm.apply_model(partial(_set_logits_scale, scale))
        positions = zip(token_ids[1:], outputs[-1].prompt_logprobs[1:], strict=True)
        return np.array([log_probs[token].logprob for token, log_probs in positions], dtype=np.float32)

    def close(self) -> None:
        if self._llm is None:
            return
        for request_id in list(self._running):
            self.cancel(request_id)
        _LIVE_ENGINES.discard(self)
        client = self._llm.engine_core
        if self._owns_process_group and not _LIVE_ENGINES:
            client.shutdown()
        else:
            # A whole shutdown destroys torch's process groups, which other engines or a learner here go on using.
            for other in itertools.islice(_LIVE_ENGINES, 1):
                other._owns_process_group |= self._owns_process_group
            if finalizer := getattr(client, "_finalizer", None):
                finalizer.detach()
            self._llm.model_executor.shutdown()
        self._llm = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _collect_entropies(self, outputs: list[tuple[_Running, RequestOutput]]) -> None:
        """Takes the entropies of the requests whose window is complete, or that end before it is."""
        due = []
        for running, output in outputs:
            arrived = min(len(running.token_ids), running.request.entropy_window)
            if running.entropies is None and (output.finished or arrived == running.request.entropy_window):
                due.append((running, arrived))
        if due:
            wanted = [(running.key, arrived) for running, arrived in due]
            taken = self._llm.collective_rpc(take_entropies, args=(wanted,))[0]
            for (running, _), entropies in zip(due, taken, strict=True):
                running.entropies = entropies

    def _events(self, running: _Running, output: RequestOutput) -> Iterator[EngineEvent]:
        request, arrived = running.request, len(running.token_ids)
        before = arrived - len(output.outputs[0].token_ids)
        if before < request.entropy_window <= arrived:
            yield EntropyReady(request.request_id, running.entropies)
        if output.finished:
            del self._running[request.request_id]
            reason = output.outputs[0].finish_reason
            yield Finished(
                request_id=request.request_id,
                token_ids=np.array(running.token_ids, dtype=np.int32),
                log_probs=np.array(running.log_probs, dtype=np.float32),
                entropies=running.entropies,
                finish_reason=reason if reason in ("stop", "length") else "error",
                num_cached_tokens=running.num_cached_tokens,
                weight_version=self.weight_version,
            )


def _engine_args(config: EngineConfig) -> EngineArgs:
    """vLLM's arguments: ours, the platform's defaults, then `engine_kwargs`."""
    ours = {
        "model": config.model_name_or_path,
        "dtype": config.dtype,
        "max_model_len": config.max_context_tokens,
        "seed": config.seed,
        "logprobs_mode": "processed_logprobs",
        "logits_processors": [f"{__name__}:{EntropyProcessor.__name__}"],
    }
    defaults = {"enable_prefix_caching": True, "disable_log_stats": True, "use_tqdm_on_load": False}
    if current_platform.is_cpu():
        defaults |= {
            "enforce_eager": True,
            "block_size": 32,
            "kv_cache_memory_bytes": 1 << 30,
            # Chunked prefill with a seeded request crashes: CPU generators have no offset to put back.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(8192, config.max_context_tokens),
        }
    else:
        # Else the engine runs one step ahead, and a cancelled or forked request is noticed one step late.
        defaults |= {"async_scheduling": False}
    _check_engine_kwargs(config.engine_kwargs, taken=ours.keys())
    return EngineArgs(**(defaults | config.engine_kwargs | ours))


def _check_engine_kwargs(engine_kwargs: dict, taken: Iterable[str]) -> None:
    known = [field.name for field in dataclasses.fields(EngineArgs)]
    for name in engine_kwargs:
        if name in taken:
            raise ValueError(f"engine_kwargs may not set {name!r}: it follows from the configuration.")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ValueError(
                f"engine_kwargs has the unknown key {name!r}" + (f": did you mean {near[0]!r}?" if near else ".")
            )


def _check_prompt(request: GenerationRequest, max_context_tokens: int, vocab_size: int) -> None:
    """Raises ValueError for what vLLM refuses, with exceptions that are not ValueErrors in all its versions."""
    prompt = request.prompt_token_ids
    if not 0 < len(prompt) < max_context_tokens:
        raise ValueError(
            f"Request {request.request_id!r} has a prompt of {len(prompt)} tokens: it must have at least one, and "
            f"fewer than max_context_tokens={max_context_tokens}."
        )
    if not (min(prompt) >= 0 and max(prompt) < vocab_size):
        raise ValueError(f"Request {request.request_id!r} has token ids outside of 0..{vocab_size - 1}.")
    if request.max_tokens < 1 or request.temperature < 0:
        raise ValueError(
            f"Request {request.request_id!r} needs max_tokens >= 1 and temperature >= 0, "
            f"not {request.max_tokens} and {request.temperature}."
        )


def _token_prompt(token_ids: list[int]) -> dict:
    return {"type": "token", "prompt_token_ids": list(token_ids)}


def _sampling_params(running: _Running) -> SamplingParams:
    request = running.request
    window = {"entropy_window": {"key": running.key, "size": request.entropy_window}}
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        seed=request.seed,
        stop=list(request.stop),
        include_stop_str_in_output=True,
        # Text is needed only to find the stop strings, and these may be special tokens.
        detokenize=bool(request.stop),
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        logprobs=0,
        extra_args=window if request.entropy_window else None,
        output_kind=RequestOutputKind.DELTA,
    )


def _append(running: _Running, output: RequestOutput) -> None:
    """Adds what a step has brought."""
    if not running.token_ids:
        running.num_cached_tokens = output.num_cached_tokens or 0
    new = output.outputs[0]
    running.token_ids += new.token_ids
    running.log_probs += [
        log_probs[token].logprob for token, log_probs in zip(new.token_ids, new.logprobs, strict=True)
    ]


def _as_tensors(arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors on the arrays' memory. Read-only arrays (Ray's object store) are copied, one at a time."""
    for name, array in arrays.items():
        yield name, torch.from_numpy(array if array.flags.writeable else array.copy())
