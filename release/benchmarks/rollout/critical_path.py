"""Wall time of a rollout whose tools dominate, against its critical path."""

from __future__ import annotations

import dataclasses
from typing import Any

from release.benchmarks.common.bench import SMALL_LLAMA, SMOLLM2, Bench, EngineHandle, median, rounded, timed
from release.benchmarks.rollout.lockstep import entropy_window, segment_decode_s
from release.benchmarks.rollout.workload import Workload, our_rollout

KEY = "critical_path_ratio"
#: Median tool latency in segments' decode times (all trajectories decoding together).
LATENCY_IN_SEGMENTS = 10.0


def critical_path(bench: Bench) -> dict[str, Any]:
    """The critical path is the largest sum, over the trajectories, of its tools' seconds and its own decode alone in
    the engine. Nothing can be faster than that."""
    name = bench.pick(full=SMOLLM2, quick=SMALL_LLAMA, tiny=SMALL_LLAMA)
    handle = bench.engine(name)
    workload = Workload(turn_tokens=bench.pick(full=8, quick=2, tiny=2))
    segment_s = segment_decode_s(handle, workload)
    alone_s = median([_decode_alone_s(handle, workload) for _ in range(3)])
    runs = [
        _run(handle, dataclasses.replace(workload, seed=seed, median_latency_s=LATENCY_IN_SEGMENTS * segment_s))
        for seed in range(bench.pick(full=3, quick=1, tiny=1))
    ]
    walls, tools = [wall for wall, _ in runs], [tool for _, tool in runs]
    paths = [tool + alone_s for tool in tools]
    in_batch = [tool + workload.num_turns * segment_s for tool in tools]
    ratios = [wall / path for wall, path in zip(walls, paths, strict=True)]
    detail = {
        "sides": ["wall_s", "critical_path_s"],
        "wall_s": rounded(walls),
        "critical_path_s": rounded(paths),
        "ratios": rounded(ratios),
        "longest_tools_s": rounded(tools),
        "decode_alone_s": round(alone_s, 4),
        "decode_in_full_batch_s": round(workload.num_turns * segment_s, 4),
        "ratio_with_decode_in_full_batch": round(median([w / p for w, p in zip(walls, in_batch, strict=True)]), 4),
        "median_latency_s": round(LATENCY_IN_SEGMENTS * segment_s, 4),
        "model": bench.model_name(name),
        "seeds": list(range(len(runs))),
        "trajectories": workload.num_questions * workload.num_trajectories,
        "turns": workload.num_turns,
        "turn_tokens": workload.turn_tokens,
    }
    return {KEY: median(ratios), f"{KEY}_detail": detail}


def _decode_alone_s(handle: EngineHandle, workload: Workload) -> float:
    """Seconds of all turns of one trajectory that has the engine to itself and tools that answer at once."""
    handle.drop_prefix_cache()
    alone = dataclasses.replace(workload, num_questions=1, num_trajectories=1, median_latency_s=0.0)
    return timed(our_rollout, handle, alone, entropy_window=entropy_window(workload), deterministic=True)[0]


def _run(handle: EngineHandle, workload: Workload) -> tuple[float, float]:
    """(wall seconds, the largest sum of tool seconds of a trajectory)."""
    handle.drop_prefix_cache()
    wall, _ = timed(our_rollout, handle, workload, entropy_window=entropy_window(workload), deterministic=True)
    trajectories = [(q, str(a)) for q in range(workload.num_questions) for a in range(workload.num_trajectories)]
    return wall, max(workload.tool_seconds(*trajectory) for trajectory in trajectories)
