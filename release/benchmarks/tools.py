"""The benchmarks of the tools: one command, a table, and a JSON file.

    python -m release.benchmarks.tools --json tools.json --quick     # a few minutes on two cores
    python -m release.benchmarks.tools --json tools.json             # larger samples

Whether tools answer rightly, also to attacks, is tested in `tests/envs`. The file is written after every tool. The exit
status is 1 if one failed; a failed one has no numbers, and its details say why.
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
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from release.benchmarks.common import runner
from release.benchmarks.common.bench import Bench, BenchmarkError, timed
from release.benchmarks.common.runner import Benchmark
from rllib_arpo.envs.retrieval.documents import pages_of
from rllib_arpo.envs.sandbox.backends import LocalBackend
from rllib_arpo.envs.support.cache import read_texts
from rllib_arpo.envs.tools.search import MAX_QUERY_CHARS, SearchTool
from rllib_arpo.envs.tools.tool import run_tool

REPOSITORY = Path(__file__).resolve().parents[2]
#: Calls that wait at the same time.
CONCURRENT = 64
#: The program that a call of the python tool runs.
CODE = """
import numpy, sympy
x = sympy.Symbol("x")
print(sympy.expand((x + {number}) ** 2), int(numpy.arange(5).sum()))
"""
SEARCH_CACHE = Path(os.environ.get("ARPO_SEARCH_CACHE", REPOSITORY.parent / "shared/data/arpo/search_cache.json"))
PASSAGES, PASSAGE_SENTENCES, MIN_WORDS = 100_000, 4, 5


def python(bench: Bench) -> dict[str, Any]:
    """Calls that use numpy and sympy, on a warm server: one after the other, and 64 at a time.

    Raises:
        BenchmarkError: a call did not give the right answer.
    """
    server = LocalBackend().server()
    server.start()

    async def call(number: int) -> None:
        answer = (await server.run(CODE.format(number=number), 120.0)).output
        if answer != f"x**2 + {2 * number}*x + {number**2} 10\n":
            raise BenchmarkError(f"Python answered {answer!r}.")

    numbers = range(2, 2 + bench.pick(full=1000, quick=200, tiny=3))
    try:
        alone, _ = asyncio.run(_call_all([call(number) for number in numbers], 1))
        together, seconds = asyncio.run(_call_all([call(number) for number in (*numbers, *numbers)], CONCURRENT))
    finally:
        server.close()
    figures = {
        "python_warm_p50_ms": _ms(alone, 50),
        "python_warm_p99_ms": _ms(alone, 99),
        "python_p99_over_p50_64": _ms(together, 99) / _ms(together, 50),
    }
    detail = {"calls": len(alone), "calls_64": len(together), "calls_per_s_64": len(together) / seconds}
    return _with_details(figures, detail)


def search(bench: Bench) -> dict[str, Any]:
    """The search tool on 100,000 passages: the build of the index with the start of its interpreter, and a call."""
    known = read_texts(SEARCH_CACHE)
    passages = make_passages(list(pages_of(known.values())), bench.pick(full=PASSAGES, quick=PASSAGES, tiny=9000))
    file, folder = bench.scratch / "passages.jsonl", bench.scratch / "index"
    file.write_text("".join(json.dumps(passage) + "\n" for passage in passages), encoding="utf-8")
    command = [sys.executable, "-m", "rllib_arpo", "index", "--output", str(folder), str(file)]
    build_s, _ = timed(subprocess.run, command, check=True, capture_output=True)
    tool = SearchTool(index=str(folder))
    tool.prepare()
    queries = [query for query in known if len(query) <= MAX_QUERY_CHARS]
    queries = queries[: bench.pick(full=1000, quick=500, tiny=20)]

    async def call(query: str) -> None:
        result = await run_tool(tool, query)
        if result.status != "ok":
            raise BenchmarkError(f"The search answered {result}.")

    asyncio.run(_call_all([call(query) for query in queries[:20]], 1))
    alone, _ = asyncio.run(_call_all([call(query) for query in queries], 1))
    together, seconds = asyncio.run(_call_all([call(query) for query in queries], CONCURRENT))
    detail = {"passages": len(passages), "queries": len(queries), "p99_ms": _ms(alone, 99)}
    detail |= {"p99_ms_64": _ms(together, 99), "per_s_64": len(together) / seconds}
    return _with_details({"search_build_s": build_s, "search_p50_ms": _ms(alone, 50)}, detail)


def make_passages(pages: Sequence[str], number: int) -> list[dict[str, str]]:
    """{"title", "text"}: sentences of the pages of ARPO's `search_cache.json`, put together anew."""
    rng = random.Random(0)
    sentences = [s for page in pages for s in re.split(r"(?<=[.!?…·])\s+", page) if len(s.split()) >= MIN_WORDS]
    drawn = [rng.choices(sentences, k=PASSAGE_SENTENCES) for _ in range(number)]
    return [{"title": " ".join(one[0].split()[:MIN_WORDS]), "text": " ".join(one)} for one in drawn]


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
    """The figures, each with the detail."""
    return figures | {f"{key}_detail": {name: round(value, 4) for name, value in detail.items()} for key in figures}


PYTHON = {"python_warm_p50_ms": "< 40", "python_warm_p99_ms": "reported", "python_p99_over_p50_64": "< 10"}
SEARCH = {"search_build_s": "< 30", "search_p50_ms": "< 5"}
BENCHMARKS = (Benchmark(python, PYTHON), Benchmark(search, SEARCH))


def main(arguments: list[str] | None = None) -> int:
    return runner.main("tools", BENCHMARKS, __doc__, arguments)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
