"""The cost of forks: prefix tokens that the engine takes from its cache, as counted by the engine itself."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from release.benchmarks.common.bench import SMOLLM2, Bench, BenchmarkError, EngineHandle
from release.benchmarks.rollout.workload import Workload, WorkloadEnv, rollout_settings
from rllib_arpo.engine.engine import Finished, GenerationRequest
from rllib_arpo.rollout.engine_loop import EngineLoop
from rllib_arpo.rollout.messages import QuestionRef
from rllib_arpo.rollout.tree_sampler import TreeSampler

CACHED, COST = "fork_cached_fraction", "fork_cost_ratio"
NUM_FORKS = 16
#: Lengths of the forks' prefixes, tool response included. The cost is that of the node of `COST_PREFIX` tokens.
PREFIXES = (500, 700, 777, 1000, 1333, 1500)
COST_PREFIX = 1000
#: One token less than whole blocks, and whole blocks: the worst cases, reported beside the figure.
UNLUCKY_PREFIXES = (511, 512)
TURN_TOKENS, TOOL_TOKENS, ENTROPY_WINDOW = 8, 40, 4
QUESTION = QuestionRef(0)


class CountingLoop(EngineLoop):
    """Keeps (prompt tokens, those of them from the cache) of every request."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.counts: dict[str, tuple[int, int]] = {}

    async def generate(self, request: GenerationRequest, *args: Any) -> Finished:
        finished = await super().generate(request, *args)
        self.counts[request.request_id] = (len(request.prompt_token_ids), finished.num_cached_tokens)
        return finished


def forks(bench: Bench) -> dict[str, Any]:
    """The worst cached fraction of any fork, and (prompt tokens computed for 16 forks) / (for one from scratch)."""
    handle = bench.engine(SMOLLM2)
    nodes = {length: _fork(handle, length, seed) for seed, length in enumerate((*PREFIXES, *UNLUCKY_PREFIXES))}
    cached = {length: round(node.cached / length, 4) for length, node in nodes.items()}
    costs = {length: round(node.of_forks / node.from_scratch, 4) for length, node in nodes.items()}
    common = {"model": bench.model_name(SMOLLM2), "forks_per_node": NUM_FORKS}
    cost = {
        "tokens_computed_for_16_forks": nodes[COST_PREFIX].of_forks,
        "tokens_computed_from_scratch": nodes[COST_PREFIX].from_scratch,
    }
    return {
        CACHED: min(cached[length] for length in PREFIXES),
        f"{CACHED}_detail": {"cached_by_prefix": cached, **common},
        COST: costs[COST_PREFIX],
        f"{COST}_detail": {**cost, "cost_by_prefix": costs, **common},
    }


class Node(NamedTuple):
    """Prompt tokens: from the cache, of the worst fork; computed for all forks; computed for a request alone."""

    cached: int
    of_forks: int
    from_scratch: int


def _fork(handle: EngineHandle, prefix_tokens: int, seed: int) -> Node:
    """Samples a tree of one root and 16 forks below its only tool response, `prefix_tokens` behind the start."""
    workload = Workload(
        TURN_TOKENS,
        num_questions=1,
        num_trajectories=1,
        num_turns=2,
        prompt_tokens=prefix_tokens - TURN_TOKENS - TOOL_TOKENS,
        tool_tokens=TOOL_TOKENS,
        seed=seed,
    )
    handle.drop_prefix_cache()
    counts, prefix = asyncio.run(_sample_tree(handle, workload))
    children = [counts[f"{QUESTION.purpose}/{QUESTION.number}/0.{child}/1"] for child in range(NUM_FORKS)]
    if any(length != prefix_tokens for length, _ in children):
        raise BenchmarkError(f"The forks' prefixes should have {prefix_tokens} tokens: {children}.")
    handle.drop_prefix_cache()
    from_scratch, cached_from_scratch = asyncio.run(_prefill(handle, prefix))
    return Node(
        min(cached for _, cached in children),
        sum(length - cached for length, cached in children),
        from_scratch - cached_from_scratch,
    )


async def _sample_tree(handle: EngineHandle, workload: Workload) -> tuple[dict[str, tuple[int, int]], list[int]]:
    """(the counts of all requests, the forks' prefix)."""
    settings = rollout_settings(
        workload,
        num_rollouts=1 + NUM_FORKS,
        num_initial_rollouts=1,
        branching="random",
        random_fork_probability=1.0,
        branch_width=NUM_FORKS,
        entropy_window=ENTROPY_WINDOW,
    )
    env = WorkloadEnv(workload)
    async with CountingLoop(handle.engine, handle.thread) as loop:
        sampled = await TreeSampler(env, loop, settings, handle.engine.vocab_size, QUESTION).sample()
    tree = sampled.tree
    root = tree.trajectories[0].turns[0]
    return loop.counts, [*tree.prompt.tolist(), *root.token_ids.tolist(), *root.observation.tolist()]


async def _prefill(handle: EngineHandle, prompt: list[int]) -> tuple[int, int]:
    async with CountingLoop(handle.engine, handle.thread) as loop:
        await loop.generate(GenerationRequest("prefill", prompt, max_tokens=1))
    return loop.counts["prefill"]
