"""What the record of trees costs the rollout, and how quickly the page of a large tree opens."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from release.benchmarks.common.bench import TINY_LLAMA, Bench, alternate, median, rounded, timed
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
from rllib_arpo.rollout.questions import QuestionLoop
from rllib_arpo.show.page import question_page
from rllib_arpo.show.records import questions, record_files
from tests.helpers.big_tree import LEAVES, TOKENS, VISIBLE, big_tree

OVERHEAD, PAGE = "record_overhead", "tree_page_s"
#: Seconds of an engine step, for all sequences together; the engine holds no lock of Python meanwhile.
STEP_S = 0.02
RECORDED = "all_recorded"
STATISTICS = RewardStatistics(0.0, 1.0)


class PacedEngine(ScriptedEngine):
    """An engine whose every step takes `STEP_S`, as on a device."""

    def step(self) -> list[EngineEvent]:
        time.sleep(STEP_S)
        return super().step()


def recording(bench: Bench) -> dict[str, Any]:
    """The share of rollout time that the record costs at its default share of the questions.

    The engine is paced, so that a rollout always lasts equally long, and the rollout, its driver and the writer's
    thread share one process, which is the worst case. One side records all questions of the run before it, so that the
    cost exceeds the noise; the default share costs that share of it.
    """
    shape, repeats = bench.pick(full=((16, 16, 128), 8), quick=((4, 16, 64), 5), tiny=((2, 2, 4), 1))
    work = Workload(shape[2], num_questions=shape[0], num_trajectories=shape[1])
    config = _config(bench.model(TINY_LLAMA))
    share = ARPOConfig().record_share
    last: list[SampledQuestion] = []

    def run(record: bool, repeat: int) -> float:
        recorder = TreeRecorder(config, lambda: bench.scratch / f"record{repeat}")
        begin = time.perf_counter()
        if record:
            recorder.training(repeat + 2, last, [question.episode for question in last], STATISTICS)
        sampled = _rollout(work)
        seconds = time.perf_counter() - begin
        recorder.close()
        last[:] = sampled
        return seconds

    _ = run(False, -2)  # What the first run records.
    sides = {RECORDED: lambda i: run(True, i), "not_recorded": lambda i: run(False, i)}
    times = alternate(sides, repeats)
    extra = [(recorded - plain) / plain for recorded, plain in zip(times[RECORDED], times["not_recorded"], strict=True)]
    cpu_s, tokens = _cpu_s(config, last)
    detail = {
        "sides": [f"{name}_s" for name in sides],
        **{f"{name}_s": rounded(values) for name, values in times.items()},
        "overhead_of_recording_all": rounded(extra),
        "default_share": share,
        "writer_cpu_us_per_token": round(1e6 * cpu_s / tokens, 2),
        "writer_cpu_s_per_rollout_s_at_default_share": round(share * cpu_s / median(times["not_recorded"]), 5),
        "tokenizer": "one token a byte",
        "step_s": STEP_S,
        "tokens_per_rollout": tokens,
        "repeats": repeats,
    }
    return {OVERHEAD: share * median(extra), f"{OVERHEAD}_detail": detail}


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
    episode = tree_to_episode(tree)
    sampled = SampledQuestion(QuestionRef(0), episode, question_stats(tree, 20), 10.0)
    folder = bench.scratch / "page"
    recorder = TreeRecorder(_config(bench.model(TINY_LLAMA)), lambda: folder)
    recorder.training(1, [sampled], [episode], STATISTICS)
    recorder.close()
    (file,) = record_files(folder)
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
