"""The process in which Chromium renders pages (for `render`), so that nothing a page does happens in the rollout's.

A page may send any number of events of any size to the process that drives the browser, and may fill its memory. This
process has the events and a limit of memory; each page has a connection to the process of the rollout, which fetches
for it. The module stands alone, since importing this package would be slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pickle
import socket
import sys
import threading
import time
from typing import Any

_NO_NETWORK = (
    "--proxy-server=http://proxy.invalid:9",
    # Without it, loopback addresses would bypass the proxy.
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--dns-prefetch-disable",
)
_LIMITS = ("--js-flags=--max-old-space-size=512", "--disable-gpu", "--mute-audio")
#: Not needed to read a page.
_NOT_LOADED = frozenset({"image", "media", "font", "stylesheet", "texttrack", "manifest", "ping"})
#: Headers of the browser's requests that the fetcher sets itself.
_OWN_HEADERS = frozenset({"host", "cookie", "content-length", "connection", "accept-encoding", "user-agent"})
#: Headers of an answer that are wrong for its decompressed body.
_BODY_HEADERS = frozenset({"content-encoding", "content-length", "transfer-encoding", "connection"})
#: Of one page: requests that are fetched, at a time and in all, and the bytes of their answers; further ones fail.
_MAX_AT_ONCE, _MAX_FETCHES, _MAX_TOTAL_BYTES = 6, 100, 20 << 20
#: Bytes of a request's body.
_MAX_SENT_BYTES = 1 << 20
#: Of one page: requests of any kind, frames, navigations and workers, and windows, each of which counts as many; one
#: more ends the page.
_MAX_EVENTS, _WINDOW_EVENTS = 1000, 50
#: Of one page: documents that it may load, frames and reloads included; then it stays as it is.
_MAX_DOCUMENTS = 50
#: Seconds that Chromium may take to start, a page to close, and a rendered document to hand over its HTML.
START_TIMEOUT_S, _CLOSE_TIMEOUT_S, _READ_TIMEOUT_S = 60.0, 5.0, 5.0
#: Seconds between two looks at the memory of all processes of the browser.
_WATCH_S = 0.2
#: What Chromium says of a document that another one has taken the place of.
_WENT_ON = ("Cannot find context", "navigated or closed")


class PageError(Exception):
    """The page cannot be rendered; the message is a sentence."""


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next message of a connection.

    Raises:
        asyncio.IncompleteReadError: it has ended.
    """
    size = int.from_bytes(await reader.readexactly(4), "big")
    return pickle.loads(await reader.readexactly(size))


def send(writer: asyncio.StreamWriter, message: Any) -> None:
    data = pickle.dumps(message)
    writer.write(len(data).to_bytes(4, "big") + data)


class Browser:
    """One Chromium, which is started again when it has died.

    Args:
        executable: the system's; None: playwright's.
        sandbox: Chromium's own.
    """

    def __init__(self, executable: str | None, sandbox: bool):
        self._executable, self._sandbox = executable, sandbox
        self._lock = asyncio.Lock()
        self._playwright: Any = None
        self._browser: Any = None

    async def get(self) -> Any:
        """Playwright's browser.

        Raises:
            playwright's Error: it does not start.
        """
        async with self._lock:
            if self._browser is None or not self._browser.is_connected():
                await self.close()
                self._browser = await self._start()
            return self._browser

    async def _start(self) -> Any:
        from playwright.async_api import async_playwright

        self._playwright = await async_playwright().start()
        return await self._playwright.chromium.launch(
            executable_path=self._executable,
            chromium_sandbox=self._sandbox,
            args=[*_NO_NETWORK, *_LIMITS],
            timeout=1000 * START_TIMEOUT_S,
        )

    async def close(self) -> None:
        playwright, self._playwright, self._browser = self._playwright, None, None
        if playwright is not None:
            # The browser ends with playwright.
            await playwright.stop()


class _Page:
    """One page: counts its events, and answers its requests over the connection.

    Args:
        order: {"url", "status", "headers", "content"} of the document, which is fetched already; "user_agent";
            "wait_s" and "max_chars" of its HTML.
    """

    def __init__(self, order: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._order, self._reader, self._writer = order, reader, writer
        self._document: tuple[int, Any, bytes] | None = (order["status"], order["headers"], order["content"])
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._places = asyncio.Semaphore(_MAX_AT_ONCE)
        self._events_left, self._documents_left = _MAX_EVENTS, _MAX_DOCUMENTS
        self._fetches_left, self._bytes_left = _MAX_FETCHES, _MAX_TOTAL_BYTES
        #: The page ends with it: the other end of the connection is closed, or there were too many events.
        self._answers = asyncio.ensure_future(self._read_answers())

    async def render(self, context: Any) -> tuple[str, str]:
        """(address, HTML) of the page that the scripts make.

        Raises:
            PageError: there is none.
        """
        opened = asyncio.ensure_future(self._open(context))
        try:
            await asyncio.wait({opened, self._answers}, return_when=asyncio.FIRST_COMPLETED)
            if opened.done():
                return opened.result()
            raise PageError("the page makes too many requests, frames or windows.")
        finally:
            opened.cancel()
            self._answers.cancel()

    async def _open(self, context: Any) -> tuple[str, str]:
        from playwright.async_api import Error
        from playwright.async_api import TimeoutError as PlaywrightTimeout

        page = await context.new_page()
        context.on("page", self._close_window)
        for event in ("frameattached", "framenavigated", "worker", "websocket"):
            page.on(event, self._count)
        await context.route("**/*", self._answer)
        wait_s, loop = self._order["wait_s"], asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        with contextlib.suppress(PlaywrightTimeout):
            await page.goto(self._order["url"], wait_until="domcontentloaded", timeout=1000 * wait_s)
            left_s = max(0.1, deadline - loop.time())
            await page.wait_for_load_state("networkidle", timeout=1000 * left_s)
        # From here on the page stays where it is; a document that is on its way may still come.
        self._documents_left = 0
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                while True:
                    try:
                        return page.url, await self._html(context, page)
                    except Error as error:
                        if not any(told in str(error) for told in _WENT_ON):
                            raise
        except TimeoutError as error:
            raise PageError("the page's scripts do not end.") from error

    async def _html(self, context: Any, page: Any) -> str:
        """The current document, read in a world where the page's scripts cannot interfere."""
        max_chars = self._order["max_chars"]
        session = await context.new_cdp_session(page)
        frame = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
        world = await session.send("Page.createIsolatedWorld", {"frameId": frame})
        expression = f"document.documentElement ? document.documentElement.outerHTML.slice(0, {max_chars + 1}) : ''"
        call = {"expression": expression, "contextId": world["executionContextId"], "returnByValue": True}
        html: str = (await session.send("Runtime.evaluate", call))["result"]["value"]
        if len(html) > max_chars:
            raise PageError(f"the rendered page is larger than {max_chars} characters.")
        return html

    def _count(self, event: Any = None, count: int = 1) -> None:
        self._events_left -= count
        if self._events_left < 0:
            self._answers.cancel()

    async def _close_window(self, window: Any) -> None:
        self._count(window, _WINDOW_EVENTS)
        await _close(window)

    async def _answer(self, route: Any) -> None:
        from playwright.async_api import Error

        self._count()
        if self._events_left < 0:
            raise asyncio.CancelledError  # The page ends, and with it the request.
        try:
            answer = await self._fetch(route.request)
            if answer is None:
                await _refuse(route)
                return
            status, headers, content = answer
            kept = _joined((key, value) for key, value in headers if key not in _BODY_HEADERS)
            await route.fulfill(status=status, headers=kept, body=content)
        except Error:
            # The page is closed. Playwright's own task for the request would wait for ever; it ends with this one.
            raise asyncio.CancelledError from None

    async def _fetch(self, request: Any) -> tuple[int, Any, bytes] | None:
        """(status, headers, body); None: the request is refused."""
        document, self._document = self._document, None
        if document is not None:
            return document
        if request.resource_type in _NOT_LOADED:
            return None
        self._fetches_left -= 1
        self._documents_left -= request.is_navigation_request()
        if min(self._fetches_left, self._documents_left) < 0:
            return None
        body = request.post_data_buffer
        if body is not None and len(body) > _MAX_SENT_BYTES:
            return None
        headers = {key: value for key, value in request.headers.items() if key not in _OWN_HEADERS}
        async with self._places:
            if self._bytes_left < 0:
                return None
            number = next(self._numbers)
            self._waiting[number] = asyncio.get_running_loop().create_future()
            send(self._writer, ("fetch", number, request.url, request.method, headers, body))
            answer: tuple[int, Any, bytes] | None = await self._waiting[number]
            self._bytes_left -= len(answer[2]) if answer else 0
            return answer

    async def _read_answers(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, answer = await receive(self._reader)
                self._waiting.pop(number).set_result(answer)


async def _refuse(route: Any) -> None:
    if route.request.is_navigation_request():
        # The page stays as it is; a failed navigation would replace it by the browser's own error page.
        await route.fulfill(status=204)
    else:
        await route.abort("blockedbyclient")


async def _close(closable: Any) -> None:
    """Closes a window or a context; if this takes long, a page keeps the browser busy, and everything ends."""
    from playwright.async_api import Error

    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await closable.close()
    except TimeoutError:
        _end()
    except Error:
        pass  # It is closed.


def _end() -> None:
    """Ends this process and all that it has started."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(1)


def _joined(headers: Any) -> dict[str, str]:
    """Joins repeated headers as HTTP prescribes (cookies, which have no such form, by line breaks)."""
    joined: dict[str, str] = {}
    for key, value in headers:
        separator = "\n" if key == "set-cookie" else ", "
        joined[key] = f"{joined[key]}{separator}{value}" if key in joined else value
    return joined


async def _serve_one(connection: socket.socket, browser: Browser) -> None:
    """Renders the page of a connection, or only starts the browser if the first message is None.

    The last message is ("page", (address, HTML)), ("error", a sentence) or ("broken", why Chromium does not start).
    """
    from playwright.async_api import Error

    reader, writer = await asyncio.open_unix_connection(sock=connection)
    context = None
    try:
        order = await receive(reader)
        try:
            started = await browser.get()
        except (Error, OSError) as error:
            send(writer, ("broken", str(error)))
            return
        if order is None:
            send(writer, ("page", None))
            return
        # Each page has a context of its own: no cookie, no storage outlives it.
        agent = order["user_agent"]
        context = await started.new_context(user_agent=agent, service_workers="block", accept_downloads=False)
        send(writer, ("page", await _Page(order, reader, writer).render(context)))
    except PageError as error:
        send(writer, ("error", str(error)))
    except Error as error:
        first_line = next(iter(str(error).strip().splitlines()), "Error").rstrip(".")
        send(writer, ("error", f"the page cannot be rendered ({first_line})."))
    except (EOFError, OSError):
        pass  # No one waits for the page any more.
    finally:
        writer.close()
        if context is not None:
            await _close(context)


async def _serve(queue: socket.socket, browser: Browser, busy: threading.Event) -> None:
    """Serves each connection that comes through `queue`, until its other end is closed."""
    pages: set[asyncio.Task[None]] = set()

    def done(page: asyncio.Task[None]) -> None:
        pages.discard(page)
        if not pages:
            busy.clear()
        page.result()

    while True:
        _, fds, _, _ = await asyncio.to_thread(socket.recv_fds, queue, 1, 1)
        if not fds:
            break
        page = asyncio.create_task(_serve_one(socket.socket(fileno=fds[0]), browser))
        busy.set()
        pages.add(page)
        page.add_done_callback(done)
    await browser.close()


def _watch(busy: threading.Event, max_bytes: int) -> None:
    """While there are pages: ends the largest process when all together have more than `max_bytes` of memory."""
    import psutil

    own = psutil.Process()
    while busy.wait():
        time.sleep(_WATCH_S)
        sizes = {}
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                sizes[process] = process.memory_info().rss
        if sum(sizes.values()) > max_bytes:
            with contextlib.suppress(psutil.Error):
                max(sizes, key=lambda process: sizes[process]).kill()


def main(options: str) -> None:
    """Runs the process; `options` is JSON: {"queue": a file descriptor, "executable", "sandbox", "memory_mb"}."""
    chosen = json.loads(options)
    busy = threading.Event()
    threading.Thread(target=_watch, args=(busy, chosen["memory_mb"] << 20), daemon=True).start()
    browser = Browser(chosen["executable"], chosen["sandbox"])
    asyncio.run(_serve(socket.socket(fileno=chosen["queue"]), browser, busy))


if __name__ == "__main__":
    main(sys.argv[1])
