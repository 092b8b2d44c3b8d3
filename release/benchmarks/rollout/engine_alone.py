"""A rollout against its engine alone: what trees, tools and the interpreter's lock cost the engine's thread."""

from __future__ import annotations

from typing import Any

from release.benchmarks.common.bench import TINY_LLAMA, Bench, EngineHandle, alternate, ratio, timed
from release.benchmarks.rollout.raw_vllm import ENTROPY_WINDOW
from release.benchmarks.rollout.workload import Workload, our_rollout


class Recorded:
    """An engine that notes which requests joined it before each step."""

    def __init__(self, engine: Any):
        self._engine = engine
        self.steps: list[list[Any]] = [[]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: Any) -> None:
        self.steps[-1].append(request)
        self._engine.submit(request)

    def step(self) -> list[Any]:
        self.steps.append([])
        return self._engine.step()


def repeat_steps(engine: Any, steps: list[list[Any]]) -> None:
    for requests in steps:
        for request in requests:
            engine.submit(request)
        engine.step()


def engine_alone(bench: Bench) -> dict[str, Any]:
    """Seconds of a rollout with tools that answer at once, 256 trajectories in flight / of its engine's steps alone.

    The rollout's steps are repeated with the same requests by the engine's thread, while no other runs. The ratio is
    what an engine in a process of its own could save, if messages between processes cost nothing. The model is tiny,
    so that Python is most of a step, as it is where a GPU computes.
    """
    questions, tokens, repeats = bench.pick(full=(16, 64, 9), quick=(16, 32, 5), tiny=(1, 8, 1))
    handle = EngineHandle(bench.model(TINY_LLAMA), engine_kwargs={"max_num_seqs": 256})
    engine = handle.engine
    workload = Workload(tokens, num_questions=questions)

    def rollout(_: int) -> float:
        handle.drop_prefix_cache()
        handle.engine = Recorded(engine)
        return timed(our_rollout, handle, workload, entropy_window=ENTROPY_WINDOW, deterministic=True)[0]

    def alone(_: int) -> float:
        handle.drop_prefix_cache()
        return timed(handle.call, repeat_steps, engine, steps)[0]

    try:
        rollout(0)
        steps = handle.engine.steps
        measured = alternate({"rollout_s": rollout, "engine_s": alone}, repeats)
    finally:
        handle.close()
    about = {"model": bench.model_name(TINY_LLAMA), "steps": len(steps), "trajectories": questions * 16}
    return ratio("rollout_engine_ratio", "rollout_s", "engine_s", measured, **about)
