"""The search tool: building an index, latencies, recall, and the cache under eight processes that write at once.

The 100,000 passages are not an encyclopedia. Every distinct page of ARPO's `search_cache.json` is one (some 8,300 real
snippets of web pages; their first five words stand for the title that they lack). The others are made: four sentences
drawn from different pages, under a title of three capitalised words drawn as often as the pages use them; no two
titles have the same words. Queries are the cache's own. The file is looked for at $ARPO_SEARCH_CACHE, else in
shared/data/arpo beside the repository.

`python -m release.benchmarks.tools.search [--quick]` prints the figures.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rllib_arpo.envs.retrieval.documents import pages_of
from rllib_arpo.envs.retrieval.index import open_folder
from rllib_arpo.envs.support.cache import ResultCache, read_texts
from rllib_arpo.envs.tools.search import MAX_QUERY_CHARS, SearchTool
from rllib_arpo.envs.tools.tool import run_tool

REPOSITORY = Path(__file__).resolve().parents[3]
SEARCH_CACHE = Path(os.environ.get("ARPO_SEARCH_CACHE", REPOSITORY.parent / "shared/data/arpo/search_cache.json"))
PASSAGES = 100_000
TITLE_WORDS = 5
CONCURRENT = 64
PROCESSES = 8
TOP_K = 5


def measure(quick: bool) -> dict[str, float]:
    """Figures of the search tool.

    Returns:
        search_passages, search_real_passages: in the index; how many of them are pages as they were found.
        search_build_s: wall seconds of the one command that builds it, with the start of its interpreter.
        search_index_mb: size of the folder.
        search_queries, search_p50_ms, search_p99_ms: calls one after the other, and their latency.
        search_p50_ms_64, search_p99_ms_64, search_per_s_64: the same calls, 64 at once.
        search_recall_5, search_recall_5_real: share of 2,000 (quick: 500) passages, of all and of the real ones, that
            their title's words find among the first five.
        cache_processes, cache_entries, cache_entries_lost, cache_put_p99_ms: processes that write at once into a file
            that none of them finds there; entries written, then missing or not equal; latency of a write.
        cache_hit_p50_ms: a call that the cache answers.

    Raises:
        DataError: `SEARCH_CACHE` is not there.
    """
    known = read_texts(SEARCH_CACHE)
    with tempfile.TemporaryDirectory() as scratch:
        figures = _cache_figures(Path(scratch), 300 if quick else 3000)
        pages = list(pages_of(known.values()))
        passages = make_passages(pages, PASSAGES)
        num_real = sum(passage["real"] for passage in passages)
        figures |= {"search_passages": len(passages), "search_real_passages": num_real}
        folder = Path(scratch, "index")
        figures["search_build_s"] = _build(passages, folder)
        figures["search_index_mb"] = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6
        queries = [query for query in known if len(query) <= MAX_QUERY_CHARS][: 500 if quick else 1000]
        figures |= _latencies(SearchTool(index=str(folder), top_k=TOP_K), queries)
        figures["cache_hit_p50_ms"] = _hit_ms(SearchTool(backend="offline", cache=str(SEARCH_CACHE)), queries)
        figures |= _recall(folder, passages, 500 if quick else 2000)
    return figures


def make_passages(pages: Sequence[str], number: int) -> list[dict]:
    """{"title", "text", "real"}: the pages with distinct titles, and then passages made of their sentences."""
    rng = random.Random(0)
    passages, titles = [], set()
    for page in pages:
        words = re.sub(r"^\w{3} \d+, \d{4} · ", "", page).split()
        title = frozenset(word.lower() for word in words[:TITLE_WORDS])
        if len(words) > 2 * TITLE_WORDS and title not in titles:
            titles.add(title)
            text = " ".join(words[TITLE_WORDS:])
            passages.append({"title": " ".join(words[:TITLE_WORDS]), "text": text, "real": True})
    sentences = [s for page in pages for s in re.split(r"(?<=[.!?…·])\s+", page) if len(s.split()) >= TITLE_WORDS]
    counts = Counter(word for page in pages for word in re.findall(r"\b[A-Z][a-z]{2,}\b", page))
    words, weights = list(counts), list(counts.values())
    while len(passages) < number:
        drawn = rng.choices(words, weights, k=3)
        title = frozenset(word.lower() for word in drawn)
        if len(title) == 3 and title not in titles:
            titles.add(title)
            text = " ".join(rng.choices(sentences, k=4))
            passages.append({"title": " ".join(drawn), "text": text, "real": False})
    return passages


def _build(passages: Sequence[dict], folder: Path) -> float:
    file = folder.with_name("passages.jsonl")
    with open(file, "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"title": p["title"], "text": p["text"]}) + "\n" for p in passages)
    command = [sys.executable, "-m", "rllib_arpo", "index", "--output", str(folder), str(file)]
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


def _latencies(tool: SearchTool, queries: Sequence[str]) -> dict[str, float]:
    tool.prepare()
    asyncio.run(_call_all(tool, queries[:20], 1))
    alone, _ = asyncio.run(_call_all(tool, queries, 1))
    together, seconds = asyncio.run(_call_all(tool, queries, CONCURRENT))
    return {
        "search_queries": len(queries),
        "search_p50_ms": _percentile(alone, 50),
        "search_p99_ms": _percentile(alone, 99),
        "search_p50_ms_64": _percentile(together, 50),
        "search_p99_ms_64": _percentile(together, 99),
        "search_per_s_64": len(together) / seconds,
    }


def _hit_ms(tool: SearchTool, queries: Sequence[str]) -> float:
    tool.prepare()
    return _percentile(asyncio.run(_call_all(tool, queries, 1))[0], 50)


async def _call_all(tool: SearchTool, queries: Sequence[str], concurrent: int) -> tuple[list[float], float]:
    """Seconds of each call, and of all of them; so many callers take the queries one after the other."""
    waiting, seconds = iter(queries), []

    async def caller() -> None:
        for query in waiting:
            begin = time.perf_counter()
            result = await run_tool(tool, query, None)
            seconds.append(time.perf_counter() - begin)
            assert result.status == "ok", result

    begin = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(concurrent)))
    return seconds, time.perf_counter() - begin


def _recall(folder: Path, passages: Sequence[dict], number: int) -> dict[str, float]:
    index, rng = open_folder(folder), random.Random(1)
    real = [row for row, passage in enumerate(passages) if passage["real"]]
    samples = {"search_recall_5": range(len(passages)), "search_recall_5_real": real}
    return {
        name: float(np.mean([_is_found(index, passages, row) for row in rng.sample(rows, number)]))
        for name, rows in samples.items()
    }


def _is_found(index, passages: Sequence[dict], row: int) -> bool:
    return row in [found for found, _ in index.search(passages[row]["title"], TOP_K)]


def _cache_figures(scratch: Path, entries_each: int) -> dict[str, float]:
    path = str(scratch / "cache.sqlite")
    context = multiprocessing.get_context("fork")
    barrier, latencies = context.Barrier(PROCESSES), context.SimpleQueue()
    writers = [
        context.Process(target=_write, args=(path, number, entries_each, barrier, latencies))
        for number in range(PROCESSES)
    ]
    for writer in writers:
        writer.start()
    seconds = [value for _ in writers for value in latencies.get()]
    for writer in writers:
        writer.join()
    found = dict(ResultCache(path).items())
    expected = {f"query {n} {i}": _text(n, i) for n in range(PROCESSES) for i in range(entries_each)}
    return {
        "cache_processes": PROCESSES,
        "cache_entries": len(expected),
        "cache_entries_lost": sum(found.get(key) != text for key, text in expected.items()),
        "cache_put_p99_ms": _percentile(seconds, 99),
    }


def _write(path: str, number: int, entries: int, barrier, latencies) -> None:
    barrier.wait()
    cache, seconds = ResultCache(path), []
    for i in range(entries):
        begin = time.perf_counter()
        cache.put(f"query {number} {i}", _text(number, i))
        seconds.append(time.perf_counter() - begin)
    latencies.put(seconds)


def _text(number: int, i: int) -> str:
    """Some 1.5 kB, as a cached result has."""
    return "\n".join(f"Page {page}: " + f"text {number} {i} " * 12 for page in range(1, 10))


def _percentile(seconds: Sequence[float], percent: float) -> float:
    """In milliseconds."""
    return float(np.percentile(seconds, percent)) * 1e3


if __name__ == "__main__":
    print(json.dumps(measure("--quick" in sys.argv[1:]), indent=2))
