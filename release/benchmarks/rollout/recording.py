"""What the record of trees and its traces cost the rollout, and how quickly the page of a large tree opens."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from release.benchmarks.common.bench import TINY_LLAMA, Bench, BenchmarkError, alternate, median, rounded, timed
from release.benchmarks.rollout.workload import Workload, WorkloadEnv, rollout_settings
from rllib_arpo import ARPOConfig
from rllib_arpo.engine.engine import EngineConfig, EngineEvent, GenerationRequest
from rllib_arpo.engine.scripted_engine import ScriptedEngine, ScriptedReply
from rllib_arpo.learner.training_data import RewardStatistics
from rllib_arpo.record.recorder import TreeRecorder
from rllib_arpo.record.tables import training_table
from rllib_arpo.rollout.episodes import tree_to_episode
from rllib_arpo.rollout.messages import QuestionRef, SampledQuestion, question_refs
from rllib_arpo.rollout.metrics import question_stats
from rllib_arpo.rollout.question_loop import QuestionLoop
from rllib_arpo.show.page import question_page
from rllib_arpo.show.records import questions, record_files
from rllib_arpo.tracking.mlflow_records import MlflowStore, OpenStore, StartRun
from rllib_arpo.tracking.mlflow_writer import StoreWriter
from rllib_arpo.tracking.recorded_questions import LogTraces
from tests.helpers.big_tree import LEAVES, TOKENS, VISIBLE, big_tree

OVERHEAD, TRACED_OVERHEAD, PAGE = "record_overhead", "trace_overhead", "tree_page_s"
#: Seconds of an engine step, for all sequences together; the engine holds no lock of Python meanwhile.
STEP_S = 0.02
NOTHING, RECORDED, TRACED = "nothing", "all_recorded", "all_recorded_and_traced"
STATISTICS = RewardStatistics(0.0, 1.0)
TRACES_TIMEOUT_S = 300.0


class PacedEngine(ScriptedEngine):
    """An engine whose every step takes `STEP_S`, as on a device."""

    def step(self) -> list[EngineEvent]:
        time.sleep(STEP_S)
        return super().step()


def recording(bench: Bench) -> dict[str, Any]:
    """The share of rollout time that the record and the traces of MLflow cost at the record's default share.

    The engine is paced, so that a rollout always lasts equally long, and the rollout, its driver and the threads of the
    record and of MLflow share one process, which is the worst case: in a run, the traces are written by Tune's process.
    One side records all questions of the run before it, another one also traces all those of a file that is there, so
    that the cost exceeds the noise; the default share costs that share of it. A run lasts until its traces are written.
    """
    shape, repeats = bench.pick(full=((16, 16, 128), 8), quick=((4, 16, 64), 5), tiny=((2, 2, 4), 1))
    work = Workload(shape[2], num_questions=shape[0], num_trajectories=shape[1])
    config = _config(bench.model(TINY_LLAMA))
    share = ARPOConfig().record_share
    tracer = _Tracer(bench.scratch)
    last = _rollout(work)  # What the first run records.

    def run(side: str, repeat: int) -> float:
        if side == TRACED:
            traced = _recorded(config, last, bench.scratch / f"traced{repeat}")
        recorder = TreeRecorder(config, lambda: bench.scratch / f"record{repeat}")
        begin = time.perf_counter()
        if side != NOTHING:
            recorder.training(repeat + 2, last, [question.episode for question in last], STATISTICS)
        if side == TRACED:
            tracer.log(traced, len(last))
        sampled = _rollout(work)
        tracer.wait()
        seconds = time.perf_counter() - begin
        recorder.close()
        last[:] = sampled
        return seconds

    sides = {side: partial(run, side) for side in (TRACED, RECORDED, NOTHING)}
    times = alternate(sides, repeats)
    extra = {side: _extra(times[side], times[NOTHING]) for side in (RECORDED, TRACED)}
    cpu_s, tokens = _cpu_s(config, last)
    common = {
        "default_share": share,
        "tokenizer": "one token a byte",
        "step_s": STEP_S,
        "tokens_per_rollout": tokens,
        "repeats": repeats,
    }
    recorded_detail = {
        "writer_cpu_us_per_token": round(1e6 * cpu_s / tokens, 2),
        "writer_cpu_s_per_rollout_s_at_default_share": round(share * cpu_s / median(times[NOTHING]), 5),
    }
    traced_detail = tracer.seconds(_recorded(config, last, bench.scratch / "last"), len(last))
    tracer.close()
    return {
        OVERHEAD: share * median(extra[RECORDED]),
        f"{OVERHEAD}_detail": _detail(times, RECORDED, extra[RECORDED]) | recorded_detail | common,
        TRACED_OVERHEAD: share * median(extra[TRACED]),
        f"{TRACED_OVERHEAD}_detail": _detail(times, TRACED, extra[TRACED]) | traced_detail | common,
    }


class _Tracer:
    """MLflow's thread of a Tune callback, with a local store."""

    def __init__(self, folder: Path):
        self._errors: list[Exception] = []
        self._store = MlflowStore(f"sqlite:///{folder / 'mlflow.db'}", "benchmark")
        self._writer = StoreWriter(self._store, 1.0, self._errors.append)
        self._writer.submit(OpenStore(1.0))
        self._num_runs = 0

    def log(self, file: Path, num_questions: int) -> None:
        """Logs all questions of a file, as those of a run of its own."""
        self._num_runs += 1
        run = str(self._num_runs)
        self._writer.submit(StartRun(run, run, {}, 0))
        self._writer.submit(LogTraces(run, file, num_questions))

    def wait(self) -> None:
        if not self._writer.flush(TRACES_TIMEOUT_S, while_failing=True) or self._errors:
            raise BenchmarkError(f"The traces were not written: {self._errors}")

    def seconds(self, file: Path, num_questions: int) -> dict[str, float]:
        """What a trace takes while nothing else runs in this process, and how many spans it has."""
        self.wait()
        StartRun("alone", "alone", {}, 0).apply(self._store)
        cpu = time.process_time()
        wall_s, _ = timed(LogTraces("alone", file, num_questions).apply, self._store)
        cpu_s = time.process_time() - cpu
        [trace] = self._store.client.search_traces(locations=[self._store.experiment], max_results=1)
        return {
            "s_per_trace": round(wall_s / num_questions, 4),
            "cpu_s_per_trace": round(cpu_s / num_questions, 4),
            "spans_per_trace": len(trace.data.spans),
        }

    def close(self) -> None:
        self._writer.stop()


def _recorded(config: ARPOConfig, sampled: Sequence[SampledQuestion], folder: Path) -> Path:
    """A file of the record with all these questions."""
    recorder = TreeRecorder(config, lambda: folder)
    recorder.training(1, sampled, [question.episode for question in sampled], STATISTICS)
    recorder.close()
    (file,) = record_files(folder)
    return file.path


def _extra(times: Sequence[float], plain: Sequence[float]) -> list[float]:
    return [(with_it - without) / without for with_it, without in zip(times, plain, strict=True)]


def _detail(times: Mapping[str, Sequence[float]], side: str, extra: Sequence[float]) -> dict[str, Any]:
    sides = [f"{name}_s" for name in (side, NOTHING)]
    return {
        "sides": sides,
        **{f"{name}_s": rounded(times[name]) for name in (side, NOTHING)},
        "overhead_of_all": rounded(extra),
    }


def _config(folder: str) -> ARPOConfig:
    return ARPOConfig().language_model(model_name_or_path=folder).debugging(record_share=1.0, seed=0)


def _rollout(work: Workload) -> list[SampledQuestion]:
    tokens = np.arange(work.turn_tokens) % VISIBLE
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


def _cpu_s(config: ARPOConfig, sampled: Sequence[SampledQuestion]) -> tuple[float, int]:
    """CPU seconds in which the writer makes the table of these questions, and their generated tokens."""
    begin = time.thread_time()
    training_table(1, [(question, question.episode) for question in sampled], config, STATISTICS)
    return time.thread_time() - begin, sum(question.stats.num_generated_tokens for question in sampled)


def page(bench: Bench) -> dict[str, Any]:
    """Seconds in which headless Chromium opens the page of a question with 16 leaves and 20,000 tokens."""
    path = _page_of_big_tree(bench)
    opened = _open(path, bench.pick(full=9, quick=5, tiny=1))
    detail = {
        "sides": ["opened_s"],
        "opened_s": rounded(opened),
        "bytes": path.stat().st_size,
        "leaves": LEAVES,
        "tokens": TOKENS,
    }
    return {PAGE: median(opened), f"{PAGE}_detail": detail}


def _page_of_big_tree(bench: Bench) -> Path:
    tree = big_tree()
    sampled = SampledQuestion(QuestionRef(0), tree_to_episode(tree), question_stats(tree, 20), 10.0)
    folder = bench.scratch / "page"
    (file,) = record_files(_recorded(_config(bench.model(TINY_LLAMA)), [sampled], folder))
    path = folder / "big.html"
    path.write_text(question_page(list(questions(file))), encoding="utf-8")
    return path


def _open(path: Path, repeats: int) -> list[float]:
    """Seconds until the page has loaded, each time in a new context of one browser."""
    from playwright.sync_api import sync_playwright

    seconds = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), chromium_sandbox=False)
        for _ in range(repeats):
            context = browser.new_context()
            seconds.append(timed(context.new_page().goto, path.as_uri())[0])
            context.close()
        browser.close()
    return seconds
