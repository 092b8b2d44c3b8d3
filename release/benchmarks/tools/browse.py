"""The browse tool: server-side request forgery, good and bad pages, and how long a page takes. All on loopback."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence

from release.benchmarks.common.bench import BenchmarkError, median
from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.tool import run_tool
from tests.envs.web import pages, ssrf
from tests.helpers.web_server import reply, serving

NUM_CONCURRENT = 32


def measure(quick: bool) -> dict[str, float]:
    """The figures of the browse tool.

    Args:
        quick: the attempts of rendered pages are made together, in the frames of one page, and fewer pages are timed.

    Raises:
        BenchmarkError: an attempt that ought to reach an unprotected server does not, or a page cannot be opened.
    """
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        raise BenchmarkError("Chromium is not installed: rendered pages cannot be measured.")
    pages.tool_for(render=True).prepare()
    plain = pages.open_pages(pages.PAGES)
    rendered = pages.open_pages(pages.RENDERED, 2, **pages.RENDERED_OPTIONS)
    fetch_s = page_seconds(100 if quick else 1000)
    render_s = page_seconds(15 if quick else 60, render=True)
    return {
        **ssrf_figures(quick),
        "browse_pages_tried": len(plain.results) + len(rendered.results),
        "browse_pages_wrong": len(plain.wrong) + len(rendered.wrong),
        "browse_slowest_page_s": max([*plain.seconds.values(), *rendered.seconds.values()]),
        "browse_p50_ms": 1000 * median(fetch_s),
        "browse_p99_ms": 1000 * sorted(fetch_s)[int(0.99 * len(fetch_s))],
        "browse_pages_timed": len(fetch_s),
        "browse_pages_per_s_32": pages_per_second(200 if quick else 2000),
        "browse_render_p50_ms": 1000 * median(render_s),
        "browse_render_pages_timed": len(render_s),
    }


def ssrf_figures(quick: bool) -> dict[str, float]:
    """How many attempts were made, and how many reached the protected server, or showed what it holds."""
    attempts = ssrf.in_one_page(ssrf.ATTEMPTS) if quick else ssrf.ATTEMPTS
    control = ssrf.run_attempts(attempts, allow_private=True)
    if missed := ssrf.missed(attempts, control):
        raise BenchmarkError(
            f"Without protection these attempts reach nothing, and prove nothing: {', '.join(missed)}."
        )
    outcome = ssrf.run_attempts(attempts, allow_private=False)
    return {
        "ssrf_tried": len(ssrf.ATTEMPTS),
        "ssrf_succeeded": len(outcome.reached | set(outcome.leaks)),
        "ssrf_connections": outcome.num_connections + outcome.num_datagrams,
        "ssrf_reached_without_protection": len(control.reached),
    }


def page_seconds(number: int, **options) -> list[float]:
    """Seconds of `number` calls, one after another, of an article of 4 kB, each at a URL of its own."""

    async def run(tool: BrowseTool, host: str) -> list[float]:
        return [await _timed(tool, f"{host}/{i}") for i in range(number)]

    with serving(pages.HOST, lambda handler: reply(handler, ARTICLE)) as server:
        return asyncio.run(run(pages.tool_for(**options), f"http://{pages.HOST}:{server.port}"))


def pages_per_second(number: int) -> float:
    """Pages of the same kind a second, `NUM_CONCURRENT` at a time."""

    async def run(tool: BrowseTool, host: str) -> Sequence[float]:
        return await asyncio.gather(*(_timed(tool, f"{host}/{i}") for i in range(number)))

    with serving(pages.HOST, lambda handler: reply(handler, ARTICLE)) as server:
        tool = pages.tool_for(max_concurrency=NUM_CONCURRENT, timeout_s=30.0)
        begin = time.perf_counter()
        asyncio.run(run(tool, f"http://{pages.HOST}:{server.port}"))
        return number / (time.perf_counter() - begin)


async def _timed(tool: BrowseTool, url: str) -> float:
    begin = time.perf_counter()
    result = await run_tool(tool, url, None)
    if result.status != ToolStatus.OK or "The brass lamp costs 12 crowns" not in result.text:
        raise BenchmarkError(f"{url}: {result.text}")
    return time.perf_counter() - begin


ARTICLE = pages.ARTICLE.replace("</article>", "".join(f"<p>{i}: made of oak and brass.</p>" for i in range(80)))
