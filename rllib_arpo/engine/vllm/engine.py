"""`VLLMEngine` runs requests on vLLM token by token, and reports events.

vLLM's scheduler runs inside this process (`LLMEngine` without its engine-core process), so one thread advances all
requests token by token. The model runs here as well, or with `tensor_parallel_size` > 1 in worker processes, one per
GPU. On GPUs vLLM starts each step before this thread reads the output of the last one (asynchronous scheduling). This
keeps the GPU busy, but events come one step late, and a child joins one step late. `AsyncLLM` would schedule in its own
process, some steps ahead.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.distributed import parallel_state
from vllm.platforms import current_platform
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreOutput, FinishReason

from rllib_arpo.engine.engine import (
    NO_WEIGHTS,
    UNKNOWN_WEIGHTS,
    EngineConfig,
    EngineEvent,
    EntropyReady,
    Finished,
    GenerationRequest,
)
from rllib_arpo.engine.stop_strings import StopStrings
from rllib_arpo.engine.vllm.arguments import (
    check_request,
    choose_entropy_processor,
    engine_args,
    sampling_params,
    token_prompt,
    usage_context,
)
from rllib_arpo.engine.vllm.entropy_processor import send_entropies
from rllib_arpo.engine.vllm.gpu_memory import prepare_gpus
from rllib_arpo.engine.vllm.process_state import (
    allow_amx,
    cpu_threads,
    forget_reloads,
    readable_globals,
    shared_memory_of,
    unpack_experts,
)
from rllib_arpo.policy.checkpoint_names import as_tensors, causal_lm_config, check_shapes, expected_shapes

#: Request id of `VLLMEngine.score`.
_SCORE = "(score)"


@dataclasses.dataclass(slots=True)
class _Running:
    """An unfinished request, and its output so far.

    Attributes:
        name: vLLM's id of the request.
        stops: the tokens that can complete one of its stop strings.
    """

    request: GenerationRequest
    name: str
    stops: frozenset[int]
    token_ids: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    entropies: list[float] = dataclasses.field(default_factory=list)
    weight_versions: list[int] = dataclasses.field(default_factory=list)
    num_cached_tokens: int = 0


_LIVE_ENGINES: weakref.WeakSet[VLLMEngine] = weakref.WeakSet()


class VLLMEngine:
    """A `TransferEngine` on vLLM. One thread must build, step and close it.

    Log-probs and entropies refer to the distribution from which tokens are sampled, `softmax(logits / temperature)` in
    float32; for greedy requests (temperature 0) to temperature 1. A request's `reshaping` changes its log-probs and not
    its entropies.

    `engine_kwargs` are vLLM's `EngineArgs`. vLLM seeds Python's, NumPy's and torch's global generators with
    `config.seed`; requests without a seed of their own draw from them.
    """

    has_model = True

    def __init__(self, config: EngineConfig):
        """Loads the model and generates one token, so that the first request does not pay for start-up.

        Raises:
            ValueError: the model is missing or not a causal LM, or `engine_kwargs` has a key that must not be set.
        """
        self.vocab_size = int(causal_lm_config(config.model_name_or_path).get_text_config().vocab_size)
        self.weight_version = UNKNOWN_WEIGHTS
        self._config = config
        self._running: dict[str, _Running] = {}
        #: The same by vLLM's ids. vLLM never reuses an id, so late output of one request never reaches another.
        self._by_name: dict[str, _Running] = {}
        #: Events of steps that other methods made; the next `step` returns them.
        self._held: list[EngineEvent] = []
        self._expected: dict[str, tuple[int, ...]] | None = None
        others_process_group = torch.distributed.is_initialized()
        self._llm: Any = self._build(engine_args(config))
        # With worker processes this process has no process group.
        self._owns_process_group = torch.distributed.is_initialized() and not others_process_group
        _LIVE_ENGINES.add(self)
        self._stop_strings = StopStrings(self._llm.tokenizer)
        self._llm.collective_rpc(send_entropies)
        if current_platform.is_cpu():
            self._llm.collective_rpc(allow_amx)
        self._warm_up()
        workers = getattr(self._llm.model_executor, "workers", ())
        self._shared_memory = shared_memory_of(worker.proc.pid for worker in workers)

    def _build(self, arguments: EngineArgs) -> LLMEngine:
        with cpu_threads(self._config.num_threads), readable_globals():
            vllm_config = arguments.create_engine_config(usage_context())
            choose_entropy_processor(vllm_config)
            lacks_experts = parallel_state.model_parallel_is_initialized() and parallel_state._EP is None
            if vllm_config.model_config.is_moe and lacks_experts:
                # A dense model's engine in this process made groups, none of them for experts. All have one member.
                parallel_state.destroy_model_parallel()
            if not current_platform.is_cpu():
                prepare_gpus(vllm_config, self._config)
            return LLMEngine.from_vllm_config(vllm_config, disable_log_stats=arguments.disable_log_stats)

    def _warm_up(self) -> None:
        self.submit(GenerationRequest("warm-up", [0, 0], max_tokens=1, entropy_window=1, stop=("\0",)))
        while self._running:
            self.step()

    def submit(self, request: GenerationRequest) -> None:
        """Queues a request.

        Raises:
            ValueError: the engine cannot run the request.
            RuntimeError: the engine still works on a request with this id.
        """
        self._check_awake()
        if request.request_id in self._running:
            raise RuntimeError(f"The request id {request.request_id!r} is in use.")
        check_request(request, self._config.max_context_tokens, self.vocab_size)
        stops = self._stop_strings.candidates(request.stop) if request.stop else frozenset()
        prompt, params = token_prompt(request.prompt_token_ids), sampling_params(request)
        name = self._llm.add_request(request.request_id, prompt, params)
        self._running[request.request_id] = self._by_name[name] = _Running(request, name, stops)

    def step(self) -> list[EngineEvent]:
        events, self._held = self._held, []
        if self._running:
            events += self._digest(self._outputs())
        return events

    def _outputs(self) -> list[EngineCoreOutput]:
        """Makes a step of vLLM, without its `OutputProcessor`, which makes text, and a dictionary for each log-prob.

        With asynchronous scheduling it starts a step, and returns the output of the previous one.
        """
        return self._llm.engine_core.get_output().outputs

    def _finish_step(self) -> None:
        """Waits for the step that vLLM has started ahead, if there is one, without starting another."""
        core = self._llm.engine_core.engine_core
        if core.batch_queue:
            core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
            while core.batch_queue:
                self._held += self._digest(self._outputs())
            core.scheduler.set_pause_state(PauseState.UNPAUSED)

    def has_unfinished(self) -> bool:
        return bool(self._running or self._held)

    def cancel(self, request_id: str) -> None:
        self._held = [event for event in self._held if event.request_id != request_id]
        running = self._running.get(request_id)
        if running is not None:
            self._forget(running)
            self._llm.engine_core.abort_requests([running.name])

    def update_weights(self, weights: Iterable[tuple[str, np.ndarray]], version: int) -> None:
        """Replaces all weights. Checks names and shapes before it loads anything.

        Raises:
            ValueError: a name is missing or unknown, or a shape is wrong; the engine goes on with its old weights.
        """
        arrays = dict(weights)
        self.check_weights({name: array.shape for name, array in arrays.items()})
        reload = ("reload_weights", {"weights_iterator": as_tensors(arrays)})
        self._replace_weights(version, (unpack_experts, {}), reload)

    def check_weights(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if self._expected is None:
            self._expected = expected_shapes(self._config.model_name_or_path)
        check_shapes(shapes, self._expected)

    def join_transfer(self, init_info: dict[str, Any]) -> None:
        self._llm.collective_rpc("shutdown_weight_transfer_engine")
        self._llm.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": init_info})

    def receive_weights(self, update_info: dict[str, Any], version: int) -> None:
        update = ("update_weights", {"update_info": update_info})
        self._replace_weights(version, ("start_weight_update", {}), update, ("finish_weight_update", {}))

    def _replace_weights(self, version: int, *calls: tuple[str | Callable[..., Any], dict[str, Any]]) -> None:
        """Makes these calls of the workers between two steps. Until all have ended, the engine has no version.

        vLLM then preempts the running requests: it frees their KV cache and computes it again at the next step, with
        the new weights, for the prompt and all tokens so far. A request keeps its tokens, its sampler and its entropy
        window. A step that was started ahead ends first: vLLM would drop its tokens, but not undo the draws of seeded
        samplers.
        """
        self._check_awake()
        self._finish_step()
        self.weight_version = NO_WEIGHTS
        for method, arguments in calls:
            self._llm.collective_rpc(method, kwargs=arguments)
        if not self._llm.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM did not drop its prefix cache: old and new weights would mix.")
        self.weight_version = version

    def score(self, token_ids: list[int]) -> np.ndarray:
        """Log-probs [n - 1] float32 of token_ids[1:] at temperature 1; n < max_context_tokens.

        vLLM computes the prompt from scratch: it does not use the prefix cache for a prompt's log-probs. The engine
        makes steps until it has them; other requests continue meanwhile.
        """
        self._check_awake()
        if len(token_ids) < 2:
            return np.zeros(0, dtype=np.float32)
        # vLLM must generate one token; a greedy one uses none of the other requests' random numbers.
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        name = self._llm.add_request(_SCORE, token_prompt(token_ids), params, priority=-1)
        scored = None
        while scored is None:
            outputs = self._outputs()
            scored = next((output for output in outputs if output.request_id == name), None)
            self._held += self._digest(outputs)
        self._llm.output_processor.abort_requests([name], internal=True)
        return scored.new_prompt_logprobs_tensors.logprobs[:, 0].numpy().copy()

    def sleep(self, level: int) -> None:
        if not self._config.can_sleep:
            # On a CPU vLLM would pause the engine for good and free nothing.
            raise RuntimeError("The engine was not built to sleep: set sleep_level.")
        self._finish_step()
        for request_id in [*self._running]:
            self.cancel(request_id)
        if not self._llm.is_sleeping():
            self._llm.sleep(level)
            self.weight_version = NO_WEIGHTS

    def wake_up(self) -> None:
        if self._config.can_sleep and self._llm.is_sleeping():
            self._llm.wake_up()

    def _check_awake(self) -> None:
        if self._config.can_sleep and self._llm.is_sleeping():
            raise RuntimeError("The engine sleeps: wake it up first.")

    def close(self) -> None:
        if self._llm is None:
            return
        self._running.clear()
        _LIVE_ENGINES.discard(self)
        client = self._llm.engine_core
        if not getattr(self._llm.model_executor, "workers", ()):
            self._llm.collective_rpc(forget_reloads)
        if self._owns_process_group and not _LIVE_ENGINES:
            client.shutdown()
        else:
            # A complete shutdown would destroy torch's process groups, which other engines or a learner here still use.
            for other in itertools.islice(_LIVE_ENGINES, 1):
                other._owns_process_group |= self._owns_process_group
            if finalizer := getattr(client, "_finalizer", None):
                finalizer.detach()
            self._llm.model_executor.shutdown()
        self._llm = None
        gc.collect()
        for segment in self._shared_memory:
            segment.unlink(missing_ok=True)  # A killed worker leaves its segments behind.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _digest(self, outputs: list[EngineCoreOutput]) -> list[EngineEvent]:
        """Turns the output of a step of vLLM into events; ignores output of requests that have ended meanwhile."""
        events: list[EngineEvent] = []
        stopped = []
        for output in outputs:
            running = self._by_name.get(output.request_id)
            if running is None:
                continue
            had, window = len(running.token_ids), running.request.entropy_window
            _append(running, output, self.weight_version)
            if had < window <= len(running.token_ids):
                entropies = np.array(running.entropies[:window], dtype=np.float32)
                events.append(EntropyReady(running.request.request_id, entropies))
            if reason := self._finish_reason(running, output):
                if output.finish_reason is None:
                    stopped.append(running.name)
                self._forget(running)
                events.append(_finished(running, reason))
        if stopped:
            self._llm.engine_core.abort_requests(stopped)
        return events

    def _finish_reason(self, running: _Running, output: EngineCoreOutput) -> str | None:
        """The request's `Finished.finish_reason`; None if it continues."""
        may_stop = output.new_token_ids and running.token_ids[-1] in running.stops
        if may_stop and self._stop_strings.end(running.request.stop, running.token_ids):
            return "stop"
        if output.finish_reason is None:
            return None
        reasons = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}
        return reasons.get(output.finish_reason, "error")

    def _forget(self, running: _Running) -> None:
        del self._running[running.request.request_id], self._by_name[running.name]
        self._llm.output_processor.abort_requests([running.name], internal=True)


def _append(running: _Running, output: EngineCoreOutput, weight_version: int) -> None:
    if output.prefill_stats is not None:
        running.num_cached_tokens = output.prefill_stats.num_cached_tokens
    if output.new_token_ids:
        running.token_ids += output.new_token_ids
        running.weight_versions += [weight_version] * len(output.new_token_ids)
        running.log_probs += output.new_logprobs.logprobs[:, 0].tolist()
        if len(running.entropies) < running.request.max_entropies:
            running.entropies += output.new_logprobs.sampled_token_ranks.tolist()  # See `send_entropies`.


def _finished(running: _Running, reason: str) -> Finished:
    return Finished(
        request_id=running.request.request_id,
        token_ids=np.array(running.token_ids, dtype=np.int32),
        log_probs=np.array(running.log_probs, dtype=np.float32),
        entropies=np.array(running.entropies, dtype=np.float32),
        weight_versions=np.array(running.weight_versions, dtype=np.int32),
        finish_reason=reason,
        num_cached_tokens=running.num_cached_tokens,
    )
