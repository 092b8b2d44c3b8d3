"""Pages that scripts build: Chromium runs them in a process of its own (`browser.py`), without a network of its own.

Our `Fetcher` answers every request of the browser, under the same rule of addresses and the same limits. Traffic that
would bypass it (WebSockets, WebRTC, preconnections, unseen requests of workers) finds no way out: the browser's proxy
is a host that its resolver does not know, and the resolver knows no other name either. So the browser makes no
connection at all, and DNS rebinding has nothing to rebind.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError, ToolError, TransientToolError
from rllib_arpo.envs.support.loop_thread import LoopThread
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.web import browser
from rllib_arpo.envs.web.fetch import Fetched, Fetcher, FetchSettings, web_thread

INSTALL = "install Debian's chromium, or say `playwright install chromium`"
_NO_PLAYWRIGHT = f"Rendering pages needs playwright (pip install playwright); {INSTALL}."
_EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
#: Megabytes with which a browser can open a small page.
MIN_BROWSER_MB = 1536
#: Seconds that the browser may take to start, with its process.
_START_TIMEOUT_S = browser.START_TIMEOUT_S + 10.0


async def render(
    document: Fetched, settings: FetchSettings, wait_s: float, sandbox: bool | None, memory_mb: int
) -> Fetched:
    """Opens `document`, which is fetched already, in the browser and lets its scripts run: the page that they make.

    Runs in the loop of `web_thread`.

    Args:
        settings: of the requests of the page's scripts.
        wait_s: how long scripts may go on building the page before it is read as it is.
        sandbox: Chromium's own; None: on, unless the user is root, for whom it cannot work.
        memory_mb: of the browser and all pages that are open in it.

    Raises:
        ToolError: the page cannot be rendered, needs too much memory, or its HTML is too large.
        TransientToolError: the browser ended; perhaps another page is the reason.
        BrokenToolError: no browser starts.
    """
    order = {
        "url": document.url,
        "status": document.status,
        "headers": document.headers,
        "content": document.content,
        "user_agent": settings.user_agent,
        "wait_s": wait_s,
        "max_chars": settings.max_bytes,
    }
    try:
        async with Fetcher(settings) as fetcher:
            url, html = await _browser_of(sandbox, memory_mb).ask(order, fetcher)
    except ToolError as error:
        raise type(error)(f"{document.url}: {error}") from error
    headers = (("content-type", "text/html; charset=utf-8"),)
    return Fetched(url, document.status, document.reason, headers, html.encode("utf-8", errors="replace"))


def prepare_browser(sandbox: bool | None, memory_mb: int) -> None:
    """Starts the browser of this process; blocks.

    Raises:
        BrokenToolError: it does not start.
    """
    try:
        web_thread().run_blocking(_browser_of(sandbox, memory_mb).ask(None, None), _START_TIMEOUT_S)
    except TimeoutError as error:
        raise BrokenToolError(f"Chromium does not start within {_START_TIMEOUT_S:g} s: {INSTALL}.") from error


def check_browser() -> str:
    """The path of the browser that would start: the system's, otherwise playwright's.

    Raises:
        ValueError: there is no browser, or playwright is missing.
    """
    if importlib.util.find_spec("playwright") is None:
        raise ValueError(_NO_PLAYWRIGHT)
    found = _system_browser() or next(map(str, sorted(_playwrights_folder().glob("chromium*"))), None)
    if found is None:
        raise ValueError(f"Rendering pages needs Chromium: {INSTALL}.")
    return found


def _system_browser() -> str | None:
    return next(filter(None, map(shutil.which, _EXECUTABLES)), None)


def _playwrights_folder() -> Path:
    """The folder into which `playwright install` puts browsers."""
    chosen = os.environ.get("PLAYWRIGHT_BROWSERS_PATH", "")
    if chosen == "0":
        return (
            Path(importlib.import_module("playwright").__file__ or "").parent / "driver" / "package" / ".local-browsers"
        )
    return Path(chosen) if chosen else Path.home() / ".cache" / "ms-playwright"


class BrowserProcess:
    """The process `browser.py`, which is started again when it has died. Used in one event loop."""

    def __init__(self, sandbox: bool, memory_mb: int):
        self._options = {"sandbox": sandbox, "memory_mb": memory_mb}
        self._queue: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None

    async def ask(self, order: dict[str, Any] | None, fetcher: Fetcher | None) -> Any:
        """(address, HTML) of the page of an order (`browser._Page`), for which `fetcher` fetches; of None, None.

        Raises:
            ToolError, BrokenToolError: as `render`, without the page's address.
            Exception: what a fetch raised that is no `ToolError`.
        """
        fetches = set()
        try:
            reader, writer = await self._connect()
            try:
                browser.send(writer, order)
                while (message := await browser.receive(reader))[0] == "fetch":
                    assert fetcher is not None
                    fetches.add(asyncio.ensure_future(_fetch(fetcher, writer, *message[1:])))
            finally:
                # The process closes the page when its connection ends.
                writer.close()
        except (EOFError, OSError) as error:
            raise TransientToolError("the browser ended while it rendered the page.") from error
        finally:
            for fetch in fetches:
                fetch.cancel()
        for fetch in fetches:
            if fetch.done() and not fetch.cancelled() and (bug := fetch.exception()):
                raise bug
        kind, content = message
        if kind == "error":
            raise ToolError(content)
        if kind == "broken":
            raise BrokenToolError(f"Chromium does not start ({first_line(RuntimeError(content))}): {INSTALL}.")
        return content

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection for one page."""
        if self.process is None or self.process.poll() is not None:
            await self.close()
            self._start()
        assert self._queue is not None
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._queue, [b"p"], [theirs.fileno()])
        return await asyncio.open_unix_connection(sock=ours)

    def _start(self) -> None:
        self._queue, theirs = socket.socketpair()
        with theirs:
            options = {**self._options, "queue": theirs.fileno(), "executable": _system_browser()}
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-P", browser.__file__, json.dumps(options)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    async def close(self) -> None:
        """Ends the process; playwright and Chromium end when they lose it."""
        if self._queue is not None and self.process is not None:
            self._queue.close()
            self.process.kill()
            self.process.wait()


#: (thread, sandbox, megabytes) -> its browser.
_BROWSERS: dict[tuple[LoopThread, bool, int], BrowserProcess] = {}


def _browser_of(sandbox: bool | None, memory_mb: int) -> BrowserProcess:
    key = web_thread(), os.geteuid() != 0 if sandbox is None else sandbox, memory_mb
    if key not in _BROWSERS:
        _BROWSERS[key] = BrowserProcess(*key[1:])
        web_thread().at_exit(_BROWSERS[key].close)
    return _BROWSERS[key]


async def _fetch(
    fetcher: Fetcher,
    writer: asyncio.StreamWriter,
    number: int,
    url: str,
    method: str,
    headers: dict[str, str],
    content: bytes | None,
) -> None:
    """Sends the answer to a request of a page; None for one that is refused or fails."""
    answer = None
    try:
        fetched = await fetcher.fetch(url, method=method, headers=headers, content=content)
        answer = fetched.status, fetched.headers, fetched.content
    except ToolError:
        pass
    finally:
        browser.send(writer, (number, answer))
