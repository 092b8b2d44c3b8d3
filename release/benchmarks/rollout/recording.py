"""What the record of trees costs the rollout."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from release.benchmarks.common.bench import TINY_LLAMA, Bench, alternate, median, spread
from release.benchmarks.rollout.workload import Workload, WorkloadEnv, rollout_settings
from rllib_arpo import ARPOConfig
from rllib_arpo.engine.engine import EngineConfig, EngineEvent, GenerationRequest
from rllib_arpo.engine.scripted_engine import ScriptedEngine, ScriptedReply
from rllib_arpo.learner.training_data import RewardStatistics
from rllib_arpo.record.recorder import TreeRecorder
from rllib_arpo.record.settings import RecordSettings
from rllib_arpo.rollout.messages import SampledQuestion, question_refs
from rllib_arpo.rollout.question_loop import QuestionLoop

#: Seconds of an engine step, for all sequences together; the engine holds no lock of Python meanwhile.
STEP_S = 0.02
#: Visible characters, one token a byte.
FIRST_TOKEN, NUM_TOKENS = 33, 94


class PacedEngine(ScriptedEngine):
    """An engine whose every step takes `STEP_S`, as on a device."""

    def step(self) -> list[EngineEvent]:
        time.sleep(STEP_S)
        return super().step()


def recording(bench: Bench) -> dict[str, Any]:
    """The share of rollout time that the record costs at its default share of questions.

    The engine is paced, so that a rollout always lasts equally long, and the rollout, its driver and the thread of the
    record share one process, which is the worst case. One side records all questions of the run before it, so that the
    cost exceeds the noise; the default share costs that share of it.
    """
    shape, repeats = bench.pick(full=((16, 16, 128), 8), quick=((4, 16, 64), 5), tiny=((2, 2, 4), 1))
    work = Workload(shape[2], num_questions=shape[0], num_trajectories=shape[1])
    config = ARPOConfig().language_model(model_name_or_path=bench.model(TINY_LLAMA)).debugging(seed=0)
    share = config.record_share
    config.debugging(record_share=1.0)
    last = _rollout(work)  # What the first run records.

    def run(records: bool, repeat: int) -> float:
        recorder = TreeRecorder(RecordSettings.from_config(config), lambda: bench.scratch / f"record{repeat}")
        begin = time.perf_counter()
        if records:
            recorder.training(repeat + 2, last, [question.episode for question in last], RewardStatistics(0.0, 1.0))
        sampled = _rollout(work)
        seconds = time.perf_counter() - begin
        recorder.close()
        last[:] = sampled
        return seconds

    times = alternate({"all_recorded_s": partial(run, True), "nothing_s": partial(run, False)}, repeats)
    extra = _extra(times["all_recorded_s"], times["nothing_s"])
    detail = {
        "sides": list(times),
        **{name: spread(values) for name, values in times.items()},
        "overhead_of_all": spread(extra),
        "default_share": share,
        "step_s": STEP_S,
        "tokens_per_rollout": sum(question.stats.num_generated_tokens for question in last),
    }
    return {"record_overhead": share * median(extra), "record_overhead_detail": detail}


def _extra(times: Sequence[float], plain: Sequence[float]) -> list[float]:
    return [(with_it - without) / without for with_it, without in zip(times, plain, strict=True)]


def _rollout(work: Workload) -> list[SampledQuestion]:
    tokens = FIRST_TOKEN + np.arange(work.turn_tokens) % NUM_TOKENS
    reply = ScriptedReply(tokens.tolist(), entropies=np.linspace(0.0, 3.0, len(tokens)).tolist())

    def script(_request: GenerationRequest, _times: int) -> ScriptedReply:
        return reply

    engine = PacedEngine(EngineConfig("none", engine_kwargs={"script": script, "vocab_size": 300}))
    envs = [WorkloadEnv(work) for _ in range(work.num_questions)]
    settings = rollout_settings(work, record_entropies="all")
    sampled: list[SampledQuestion] = []
    with ThreadPoolExecutor(1) as thread, QuestionLoop(engine, thread) as loop:
        loop.submit(question_refs(range(work.num_questions)), envs, settings)
        while loop.in_flight:
            sampled += loop.take()
    return sampled
