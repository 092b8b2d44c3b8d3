"""Measures the cost of forks: how many prefix tokens the engine takes from its cache, by its own count."""

from __future__ import annotations

import asyncio
from typing import Any

from release.benchmarks.common.bench import SMOLLM2, Bench, BenchmarkError, EngineHandle
from release.benchmarks.rollout.workload import Workload, WorkloadEnv, rollout_settings
from rllib_arpo.engine.engine import Finished, GenerationRequest
from rllib_arpo.rollout.engine_loop import EngineLoop
from rllib_arpo.rollout.messages import QuestionRef
from rllib_arpo.rollout.tree_sampler import TreeSampler

CACHED, COST = "fork_cached_fraction", "fork_cost_ratio"
NUM_FORKS = 16
#: Lengths of the forks' prefixes with the tool response. The cost is measured at the node with `COST_PREFIX` tokens.
PREFIXES = (500, 700, 777, 1000, 1333, 1500)
COST_PREFIX = 1000
#: The worst cases, which the detail reports: one token less than whole blocks, and whole blocks.
UNLUCKY_PREFIXES = (511, 512)
TURN_TOKENS, TOOL_TOKENS, ENTROPY_WINDOW = 8, 40, 4
QUESTION = QuestionRef(0)


class CountingLoop(EngineLoop):
    """Keeps (prompt tokens, prompt tokens from the cache) of every request."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.counts: dict[str, tuple[int, int]] = {}

    async def generate(self, request: GenerationRequest, *args: Any) -> Finished:
        finished = await super().generate(request, *args)
        self.counts[request.request_id] = (len(request.prompt_token_ids), finished.num_cached_tokens)
        return finished


def forks(bench: Bench) -> dict[str, Any]:
    """The worst cached fraction of a fork, and prompt tokens computed for 16 forks / for one from scratch."""
    handle = bench.engine(SMOLLM2)
    nodes = {length: _fork(handle, length, seed) for seed, length in enumerate((*PREFIXES, *UNLUCKY_PREFIXES))}
    cached = {length: round(worst / length, 4) for length, (worst, _) in nodes.items()}
    costs = {length: round(computed / length, 4) for length, (_, computed) in nodes.items()}
    common = {"model": bench.model_name(SMOLLM2), "forks_per_node": NUM_FORKS}
    cost = {
        "tokens_computed_for_16_forks": nodes[COST_PREFIX][1],
        "tokens_computed_from_scratch": COST_PREFIX,
    }
    return {
        CACHED: min(cached[length] for length in PREFIXES),
        f"{CACHED}_detail": {"cached_by_prefix": cached, **common},
        COST: costs[COST_PREFIX],
        f"{COST}_detail": {**cost, "cost_by_prefix": costs, **common},
    }


def _fork(handle: EngineHandle, prefix_tokens: int, seed: int) -> tuple[int, int]:
    """Samples a tree with one root and 16 forks after its only tool response, which ends at `prefix_tokens`.

    Returns:
        (the fewest prompt tokens of a fork that came from the cache, computed prompt tokens of all forks).
    """
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
    counts = asyncio.run(_sample_tree(handle, workload))
    children = [counts[f"{QUESTION.purpose}/{QUESTION.number}/0.{child}/1"] for child in range(NUM_FORKS)]
    if any(length != prefix_tokens for length, _ in children):
        raise BenchmarkError(f"The forks' prefixes should have {prefix_tokens} tokens: {children}.")
    return min(cached for _, cached in children), sum(length - cached for length, cached in children)


async def _sample_tree(handle: EngineHandle, workload: Workload) -> dict[str, tuple[int, int]]:
    """The counts of all requests."""
    settings = rollout_settings(
        workload,
        num_rollouts=1 + NUM_FORKS,
        num_initial_rollouts=1,
        branching="random",
        random_fork_probability=1.0,
        branch_width=NUM_FORKS,
        entropy_window=ENTROPY_WINDOW,
    )
    async with CountingLoop(handle.engine, handle.thread) as loop:
        await TreeSampler(WorkloadEnv(workload), loop, settings, handle.engine.vocab_size, QUESTION).sample()
    return loop.counts
