"""An engine without a model: it follows a script, calls the tools of an environment, or writes random tokens."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rllib_arpo.core.reshaping import reshaped_log_probs
from rllib_arpo.engine.engine import (
    NO_WEIGHTS,
    UNKNOWN_WEIGHTS,
    EngineConfig,
    EngineEvent,
    EntropyReady,
    Finished,
    GenerationRequest,
)


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """The tokens that a request generates, one at each step.

    Attributes:
        token_ids: the tokens; at most the request's `max_tokens` of them are generated ("length").
        entropies: nats, one per token; one number stands for all tokens.
        log_probs: one per token; None: minus the entropies.
        finish_reason: "stop", "length" or "error".
        delay: the number of steps before the first token.
        fail_after: the number of tokens after which the request ends with "error" (0: before the first).
    """

    token_ids: Sequence[int]
    entropies: Sequence[float] | float = 1.0
    log_probs: Sequence[float] | None = None
    finish_reason: str = "stop"
    delay: int = 0
    fail_after: int | None = None


#: The reply to a request, given the number of earlier requests with the same prefix.
Script = Callable[[GenerationRequest, int], ScriptedReply]


@dataclass(slots=True)
class _Running:
    request: GenerationRequest
    reply: ScriptedReply
    entropies: np.ndarray
    log_probs: np.ndarray
    weight_versions: list[int] = field(default_factory=list)
    steps: int = 0
    num_cached_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """How many tokens it has generated."""
        return max(0, self.steps - self.reply.delay)


class ScriptedEngine:
    """An engine that decides about all tokens of a request when it arrives, whatever the weights are.

    The script states the entropies too, so `entropy_estimator` changes nothing.

    `engine_kwargs`; without any of the first five it plays the env runner's environment (`play`):
        script: see `Script`; None: a `RandomPolicy`.
        vocab_size: V (default 256).
        end_token_id, end_probability, replies: see `RandomPolicy`.
        seed: the policy's seed (default: the engine's).
        weight_names: if given, `update_weights` takes exactly these names.
        fail_at_step: the step, counted from 1, at which the engine dies with RuntimeError.

    Attributes:
        submitted: every request, in order.
        cancelled: the ids of the requests that were cancelled while they ran.
        weights: the last ones given to `update_weights`.
        num_steps: the number of steps so far.
        sleeps: the level of each `sleep`, in order.
        asleep: whether it sleeps now.
    """

    has_model = False

    def __init__(self, config: EngineConfig):
        options = dict(config.engine_kwargs)
        self._plays = not options.keys() & {"script", "vocab_size", "end_token_id", "end_probability", "replies"}
        self.vocab_size: int = options.pop("vocab_size", 256)
        self.weight_version = UNKNOWN_WEIGHTS
        self.weights: dict[str, np.ndarray] = {}
        self.submitted: list[GenerationRequest] = []
        self.cancelled: list[str] = []
        self.num_steps = 0
        self.sleeps: list[int] = []
        self.asleep = False
        self._can_sleep = config.can_sleep
        script: Script | None = options.pop("script", None)
        self.fail_at_step: int | None = options.pop("fail_at_step", None)
        self._weight_names: Sequence[str] | None = options.pop("weight_names", None)
        self._seed: int = options.pop("seed", config.seed)
        self._policy = RandomPolicy(self.vocab_size, seed=self._seed, **options)
        self._script: Script = script or self._policy.reply
        self._times_asked: Counter[tuple[int, ...]] = Counter()
        self._running: dict[str, _Running] = {}
        self._cache: dict[int, Any] = {}

    def play(self, env: object) -> None:
        """From now on it calls the tools of a `ToolEnv` (`CallingPolicy`), if `engine_kwargs` leaves that open."""
        from rllib_arpo.engine.scripted_calls import CallingPolicy
        from rllib_arpo.envs.tool_env import ToolEnv

        if self._plays and isinstance(env, ToolEnv):
            self.vocab_size = len(env.tokenizer)
            self._policy = replace(self._policy, vocab_size=self.vocab_size)
            self._script = CallingPolicy(env, self._seed).reply

    def submit(self, request: GenerationRequest) -> None:
        if self.asleep:
            raise RuntimeError("The engine sleeps: wake it up first.")
        if request.request_id in self._running:
            raise RuntimeError(f"The request id {request.request_id!r} is in use.")
        prefix = tuple(request.prompt_token_ids)
        reply = self._script(request, self._times_asked[prefix])
        self._times_asked[prefix] += 1
        self.submitted.append(request)
        n = len(reply.token_ids)
        entropies = np.broadcast_to(np.asarray(reply.entropies, dtype=np.float32), n)
        log_probs = -entropies if reply.log_probs is None else np.asarray(reply.log_probs, dtype=np.float32)
        if len(log_probs) != n:
            raise ValueError(f"The script has {n} tokens and {len(log_probs)} log-probs.")
        self._running[request.request_id] = _Running(request, reply, entropies, log_probs)

    def step(self) -> list[EngineEvent]:
        """Generates one token for every running request, in order of submission."""
        self.num_steps += 1
        if self.num_steps == self.fail_at_step:
            raise RuntimeError(f"The scripted engine died at step {self.num_steps} (fail_at_step).")
        return [event for running in list(self._running.values()) for event in self._advance(running)]

    def has_unfinished(self) -> bool:
        return bool(self._running)

    def cancel(self, request_id: str) -> None:
        if self._running.pop(request_id, None) is not None:
            self.cancelled.append(request_id)

    def update_weights(self, weights: Iterable[tuple[str, np.ndarray]], version: int) -> None:
        given = dict(weights)
        if self._weight_names is not None and (wrong := sorted(given.keys() ^ set(self._weight_names))):
            raise ValueError(f"Unknown or missing weights: {', '.join(wrong)}.")
        self.weights = {name: np.array(array) for name, array in given.items()}
        self.weight_version = version
        self._cache = {}

    def score(self, token_ids: list[int]) -> np.ndarray:
        """Log-probs under the random policy, whatever the script is."""
        scores = [self._policy.log_probs(token_ids[:i])[token_ids[i]] for i in range(1, len(token_ids))]
        return np.array(scores, dtype=np.float32)

    def sleep(self, level: int) -> None:
        if not self._can_sleep:
            raise RuntimeError("The engine was not built to sleep: set sleep_level.")
        for request_id in [*self._running]:
            self.cancel(request_id)
        self.sleeps.append(level)
        self.asleep = True
        self._cache = {}
        self.weight_version = NO_WEIGHTS
        if level == 2:
            self.weights = {}

    def wake_up(self) -> None:
        self.asleep = False

    def close(self) -> None:
        self._running.clear()

    def _advance(self, running: _Running) -> Iterator[EngineEvent]:
        request, reply = running.request, running.reply
        if running.steps == 0:
            running.num_cached_tokens = self._remember(request.prompt_token_ids)
        running.steps += 1
        arrived, last = running.num_tokens, min(len(reply.token_ids), request.max_tokens)
        running.weight_versions += [self.weight_version] * (arrived - len(running.weight_versions))
        failed = reply.fail_after is not None and arrived >= reply.fail_after
        if arrived == request.entropy_window > 0 and running.steps > reply.delay and not failed:
            yield EntropyReady(request.request_id, running.entropies[:arrived].copy())
        if failed or arrived >= last:
            del self._running[request.request_id]
            reason = "error" if failed else "length" if last < len(reply.token_ids) else reply.finish_reason
            yield self._finish(running, last if not failed else reply.fail_after or 0, reason)

    def _finish(self, running: _Running, n: int, reason: str) -> Finished:
        request = running.request
        token_ids = list(running.reply.token_ids[:n])
        self._remember([*request.prompt_token_ids, *token_ids])
        return Finished(
            request_id=request.request_id,
            token_ids=np.array(token_ids, dtype=np.int32),
            log_probs=running.log_probs[:n].copy(),
            entropies=running.entropies[: min(n, request.max_entropies)].copy(),
            weight_versions=np.array(running.weight_versions[:n], dtype=np.int32),
            finish_reason=reason,
            num_cached_tokens=running.num_cached_tokens,
        )

    def _remember(self, token_ids: Sequence[int]) -> int:
        """Puts a sequence into the prefix cache; returns how many of its leading tokens the cache already had."""
        node, num_cached, new = self._cache, 0, False
        for token in token_ids:
            new = new or token not in node
            num_cached += not new
            node = node.setdefault(token, {})
        return num_cached


@dataclass(frozen=True, slots=True)
class RandomPolicy:
    """A random language model: the logits after a prefix are drawn by a generator that the prefix seeds.

    A request's tokens depend only on its prefix, its temperature, its seed and the policy's seed, not on other
    requests. Instead of a missing seed, the number of earlier requests with the same prefix counts.

    Attributes:
        vocab_size: V; all tokens are possible at every position.
        end_token_id: ends the request ("stop"); None: the last token of the vocabulary.
        end_probability: the end token's probability at every position, at temperature 1.
        replies: if given, a request generates one of these token sequences, and only the choice among them is random;
            their tokens keep the policy's entropies and log-probs.
        spread: standard deviation of the logits.
    """

    vocab_size: int
    seed: int = 0
    end_token_id: int | None = None
    end_probability: float = 0.1
    replies: Sequence[Sequence[int]] | None = None
    spread: float = 2.0

    def reply(self, request: GenerationRequest, times_asked: int) -> ScriptedReply:
        draw = times_asked if request.seed is None else request.seed
        chooser = self._generator(request.prompt_token_ids, draw)
        script = None if self.replies is None else self.replies[int(chooser.integers(len(self.replies)))]
        prefix, token_ids, entropies, log_probs = list(request.prompt_token_ids), [], [], []
        for position in range(request.max_tokens if script is None else min(len(script), request.max_tokens)):
            # A greedy request reports log-probs at temperature 1.
            logits, temperature = self.logits(prefix), request.temperature or 1.0
            whole = _log_softmax(logits / temperature)
            sampled = reshaped_log_probs(logits, np.array(prefix), temperature, request.reshaping)
            if script is not None:
                token = int(script[position])
            elif request.temperature == 0:
                token = int(sampled.argmax())
            else:
                token = int(chooser.choice(self.vocab_size, p=np.exp(sampled)))
            token_ids.append(token)
            log_probs.append(float(sampled[token]))
            entropies.append(float(-(np.exp(whole) * whole).sum()))
            prefix.append(token)
            if script is None and token == self._end:
                break
        complete = token_ids[-1] == self._end if script is None else len(token_ids) == len(script)
        return ScriptedReply(token_ids, entropies, log_probs, finish_reason="stop" if complete else "length")

    def log_probs(self, prefix: Sequence[int], temperature: float = 1.0) -> np.ndarray:
        """The log-probs of the token after `prefix`, [V] float64."""
        return _log_softmax(self.logits(prefix) / temperature)

    def logits(self, prefix: Sequence[int]) -> np.ndarray:
        """The logits of the token after `prefix`, [V] float64."""
        logits = self._generator(prefix).normal(0.0, self.spread, self.vocab_size)
        others = np.logaddexp.reduce(np.delete(logits, self._end))
        logits[self._end] = others + np.log(self.end_probability / (1 - self.end_probability))
        return logits

    @property
    def _end(self) -> int:
        return self.vocab_size - 1 if self.end_token_id is None else self.end_token_id

    def _generator(self, prefix: Sequence[int], *more: int) -> np.random.Generator:
        key = np.array([self.seed, *more, -1, *prefix], dtype=np.int64).tobytes()
        return np.random.default_rng(list(hashlib.blake2b(key, digest_size=16).digest()))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits)
