"""The benchmarks of the tools: one command, a table, and a JSON file.

    python -m release.benchmarks.tools --json tools.json --quick     # a few minutes on two cores
    python -m release.benchmarks.tools --json tools.json             # larger samples

The attacks on the sandbox, hostile pages and answers, and many processes that write into one cache are tests
(`tests/envs`). The file is written after every tool. The exit status is 1 if one failed; a failed one has no numbers,
and its details say why.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from release.benchmarks.common import runner
from release.benchmarks.common.bench import Bench, BenchmarkError, timed
from release.benchmarks.common.runner import Benchmark
from rllib_arpo.envs.retrieval.documents import pages_of
from rllib_arpo.envs.retrieval.index import open_folder
from rllib_arpo.envs.rewards import math_accuracy
from rllib_arpo.envs.rewards.mathematics import forms
from rllib_arpo.envs.sandbox import bubblewrap
from rllib_arpo.envs.sandbox.backends import LocalBackend
from rllib_arpo.envs.support.cache import read_texts
from rllib_arpo.envs.tools.search import MAX_QUERY_CHARS, SearchTool
from rllib_arpo.envs.tools.tool import run_tool

REPOSITORY = Path(__file__).resolve().parents[2]
#: Calls that wait at the same time.
CONCURRENT = 64
#: What a call of the python tool runs.
CODE = """
import numpy, sympy
x = sympy.Symbol("x")
print(sympy.expand((x + {number}) ** 2), int(numpy.arange(5).sum()))
"""
SEARCH_CACHE = Path(os.environ.get("ARPO_SEARCH_CACHE", REPOSITORY.parent / "shared/data/arpo/search_cache.json"))
PASSAGES, TITLE_WORDS, TOP_K = 100_000, 5, 5
#: A verdict, a gold answer and an answer a line.
PAIRS = REPOSITORY / "tests/envs/rewards/math_pairs.tsv"


def python(bench: Bench) -> dict[str, Any]:
    """Calls that use numpy and sympy: one after the other on a warm server; 64 at a time; and, as many at a time as
    there are CPUs, each in a new `bwrap python`.

    Raises:
        BenchmarkError: a call did not give the right answer.
    """
    server = LocalBackend().server()
    server.start()

    async def call(number: int) -> None:
        reply = await server.run(CODE.format(number=number), 120.0)
        _check_answer(number, reply.output)

    numbers = range(2, 2 + bench.pick(full=1000, quick=200, tiny=3))
    try:
        alone, _ = asyncio.run(_call_all([call(number) for number in numbers], 1))
        together, seconds = asyncio.run(_call_all([call(number) for number in (*numbers, *numbers)], CONCURRENT))
    finally:
        server.close()
    cold = bench.pick(full=128, quick=16, tiny=1)
    per_s = {"warm_calls_per_s": len(together) / seconds, "cold_calls_per_s": cold / _cold_s(cold)}
    figures = {
        "python_warm_p50_ms": _ms(alone, 50),
        "python_warm_p99_ms": _ms(alone, 99),
        "python_p99_over_p50_64": _ms(together, 99) / _ms(together, 50),
        "python_vs_cold_64": per_s["warm_calls_per_s"] / per_s["cold_calls_per_s"],
    }
    return _with_details(figures, per_s | {"calls": len(alone), "calls_64": len(together), "cold_calls": cold})


def _cold_s(num_calls: int) -> float:
    """Seconds of calls with a new process each, which has the same view of the files as the server's."""
    packages = bubblewrap.site_packages()

    def call(number: int) -> None:
        program = f"import sys; sys.path += {list(packages.values())!r}\n{CODE.format(number=number)}"
        with bubblewrap.namespace_options() as (options, fds):
            view = bubblewrap.view_options(packages)
            command = [bubblewrap.find_bwrap(), *options, *view, "--", bubblewrap.interpreter(), "-S", "-c", program]
            environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, pass_fds=fds, env=environment, capture_output=True, text=True)
        _check_answer(number, done.stdout)

    call(2)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return timed(lambda: list(threads.map(call, range(2, 2 + num_calls))))[0]


def _check_answer(number: int, answer: str) -> None:
    if answer != f"x**2 + {2 * number}*x + {number**2} 10\n":
        raise BenchmarkError(f"Python answered {answer!r}.")


def search(bench: Bench) -> dict[str, Any]:
    """The search tool on 100,000 passages: the build of the index with the start of its interpreter, the latency of a
    call, and the share of passages that their title's words find among the first five."""
    known = read_texts(SEARCH_CACHE)
    passages = make_passages(list(pages_of(known.values())), bench.pick(full=PASSAGES, quick=PASSAGES, tiny=9000))
    file, folder = bench.scratch / "passages.jsonl", bench.scratch / "index"
    lines = [json.dumps({"title": passage["title"], "text": passage["text"]}) for passage in passages]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "rllib_arpo", "index", "--output", str(folder), str(file)]
    build_s, _ = timed(subprocess.run, command, check=True, capture_output=True)
    tool = SearchTool(index=str(folder), top_k=TOP_K)
    tool.prepare()
    queries = [query for query in known if len(query) <= MAX_QUERY_CHARS]
    queries = queries[: bench.pick(full=1000, quick=500, tiny=20)]

    async def call(query: str) -> None:
        result = await run_tool(tool, query, None)
        if result.status != "ok":
            raise BenchmarkError(f"The search answered {result}.")

    asyncio.run(_call_all([call(query) for query in queries[:20]], 1))
    alone, _ = asyncio.run(_call_all([call(query) for query in queries], 1))
    together, seconds = asyncio.run(_call_all([call(query) for query in queries], CONCURRENT))
    sample = random.Random(1).sample(range(len(passages)), bench.pick(full=2000, quick=500, tiny=20))
    index = open_folder(folder)
    found = [row in [hit for hit, _ in index.search(passages[row]["title"], TOP_K)] for row in sample]
    figures = {"search_build_s": build_s, "search_p50_ms": _ms(alone, 50), "search_recall_5": float(np.mean(found))}
    detail = {"passages": len(passages), "queries": len(queries), "p99_ms": _ms(alone, 99)}
    return _with_details(figures, detail | {"p99_ms_64": _ms(together, 99), "per_s_64": len(together) / seconds})


def make_passages(pages: Sequence[str], number: int) -> list[dict[str, str]]:
    """{"title", "text"}: pages, and then passages made of their sentences. This is not an encyclopedia.

    Every distinct page of ARPO's `search_cache.json` is one (some 7,500 real snippets of web pages; their first five
    words stand for the title that they lack). The others are four sentences of different pages, under a title of three
    capitalised words drawn as often as the pages use them; no two titles have the same words.
    """
    rng = random.Random(0)
    passages, titles = [], set()
    for page in pages:
        words = re.sub(r"^\w{3} \d+, \d{4} · ", "", page).split()
        title = frozenset(word.lower() for word in words[:TITLE_WORDS])
        if len(words) > 2 * TITLE_WORDS and title not in titles:
            titles.add(title)
            passages.append({"title": " ".join(words[:TITLE_WORDS]), "text": " ".join(words[TITLE_WORDS:])})
    sentences = [s for page in pages for s in re.split(r"(?<=[.!?…·])\s+", page) if len(s.split()) >= TITLE_WORDS]
    counts = Counter(word for page in pages for word in re.findall(r"\b[A-Z][a-z]{2,}\b", page))
    words, weights = list(counts), list(counts.values())
    while len(passages) < number:
        drawn = rng.choices(words, weights, k=3)
        title = frozenset(word.lower() for word in drawn)
        if len(title) == 3 and title not in titles:
            titles.add(title)
            passages.append({"title": " ".join(drawn), "text": " ".join(rng.choices(sentences, k=4))})
    return passages


def mathematics(bench: Bench) -> dict[str, Any]:
    """The math reward: the latency of comparisons of `PAIRS` that need algebra (a process of its own), and the wrong
    verdicts on `PAIRS` and on the gold answers of GSM8K and MATH500 against themselves, plain and respelled."""
    rows = [line.split("\t") for line in PAIRS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    step = bench.pick(full=1, quick=1, tiny=40)
    rows = rows[::step]
    golds = [*_golds("gsm8k"), *_golds("math500")][:: step**2]
    selves = [(gold, spelled) for gold in golds for spelled in (gold, f" ${gold}$. ", f"x = {gold}")]
    # A name before an answer that has one, before a list or a text, makes it another answer.
    selves = [(gold, spelled) for gold, spelled in selves if spelled[0] != "x" or gold.lstrip("-").isdigit()]
    checks = [(verdict == "equal", gold, answer) for verdict, gold, answer in rows]
    checks += [(True, gold, spelled) for gold, spelled in selves]
    seconds, wrong = asyncio.run(_verdicts(checks))
    algebra = [
        took for took, (_, gold, answer) in zip(seconds[: len(rows)], checks, strict=False) if _asks(gold, answer)
    ]
    figures = {"math_p50_ms": _ms(algebra, 50), "math_wrong": wrong}
    return _with_details(figures, {"p99_ms": _ms(algebra, 99), "timed": len(algebra), "checked": len(checks)})


async def _verdicts(checks: Sequence[tuple[bool, str, str]]) -> tuple[list[float], int]:
    """Seconds of each comparison (whether it is right, the gold answer, the answer); how many verdicts were wrong."""
    await math_accuracy("\\sqrt{2}", ["\\pi"])  # Starts the worker.
    seconds, wrong = [], 0
    for right, gold, answer in checks:
        begin = time.perf_counter()
        wrong += (await math_accuracy(answer, [gold]) == 1.0) != right
        seconds.append(time.perf_counter() - begin)
    return seconds, wrong


def _asks(gold: str, answer: str) -> bool:
    """Whether a comparison needs algebra."""
    asked: list[tuple[str, ...]] = []

    def compare(*pair: str) -> bool:
        asked.append(pair)
        return False

    forms.equal(gold, answer, compare)
    return bool(asked)


def _golds(name: str) -> list[str]:
    file = f"shared/data/benchmarks/{name}/test.jsonl"
    path = next((folder / file for folder in Path(__file__).resolve().parents if (folder / file).is_file()), None)
    if path is None:
        raise BenchmarkError(f"The real data is not here: no {file} beside the project.")
    rows = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(row)["answer"].rpartition("####")[2].strip() for row in rows]


async def _call_all(calls: Sequence[Coroutine[Any, Any, None]], concurrent: int) -> tuple[list[float], float]:
    """Seconds of each call, and of all of them; so many callers take them one after the other."""
    waiting, seconds = iter(calls), []

    async def caller() -> None:
        for call in waiting:
            begin = time.perf_counter()
            await call
            seconds.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(concurrent)))
    return seconds, time.perf_counter() - begin


def _ms(seconds: Sequence[float], percent: float) -> float:
    return float(np.percentile(seconds, percent)) * 1e3


def _with_details(figures: dict[str, float], detail: dict[str, float]) -> dict[str, Any]:
    """The figures, each with the detail; the table shows it once."""
    detail = {name: round(value, 4) for name, value in detail.items()}
    details = {f"{key}_detail": {"sides": [] if i else list(detail), **detail} for i, key in enumerate(figures)}
    return figures | details


BENCHMARKS = (
    Benchmark(
        python,
        {
            "python_warm_p50_ms": "< 40",
            "python_warm_p99_ms": "reported",
            "python_p99_over_p50_64": "< 10",
            "python_vs_cold_64": ">= 20",
        },
    ),
    Benchmark(search, {"search_build_s": "< 30", "search_p50_ms": "< 5", "search_recall_5": ">= 0.95"}),
    Benchmark(mathematics, {"math_p50_ms": "reported", "math_wrong": "0"}),
)


def main(arguments: list[str] | None = None) -> int:
    return runner.main("tools", BENCHMARKS, __doc__, arguments)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
