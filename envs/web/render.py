"""Pages that scripts build: Chromium runs them, without a network of its own.

Our `Fetcher` answers every request of the browser, under the same rule of addresses and the same limits. Traffic that
would bypass it (WebSockets, WebRTC, preconnections, unseen requests of workers) finds no way out: the browser's proxy
is a host that its resolver does not know, and the resolver knows no other name either. So the browser makes no
connection at all, and DNS rebinding has nothing to rebind.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError, ToolError
from rllib_arpo.envs.support.loop_thread import LoopThread, loop_thread
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.web.fetch import Fetched, Fetcher, FetchSettings

INSTALL = "install Debian's chromium, or say `playwright install chromium`"
_NO_PLAYWRIGHT = f"Rendering pages needs playwright (pip install playwright); {INSTALL}."
_EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
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
#: Of one page: further requests fail.
_MAX_REQUESTS, _MAX_TOTAL_BYTES = 100, 20 << 20
_START_TIMEOUT_S, _CLOSE_TIMEOUT_S = 60.0, 5.0
#: Seconds that a rendered document may take to hand over its HTML.
_READ_TIMEOUT_S = 5.0


async def render(document: Fetched, settings: FetchSettings, wait_s: float, sandbox: bool | None) -> Fetched:
    """Opens `document`, which is fetched already, in the browser and lets its scripts run: the page that they make.

    Args:
        settings: of the requests of the page's scripts.
        wait_s: how long scripts may go on building the page before it is read as it is.
        sandbox: Chromium's own; None: on, unless the user is root, for whom it cannot work.

    Raises:
        ToolError: the page cannot be rendered, or its HTML is too large.
        BrokenToolError: no browser starts.
    """
    thread = loop_thread("browser")
    return await thread.run(_render(thread, sandbox, document, settings, wait_s))


def prepare_browser(sandbox: bool | None) -> None:
    """Starts the browser of this process; blocks.

    Raises:
        BrokenToolError: it does not start.
    """
    thread = loop_thread("browser")
    try:
        thread.run_blocking(_browser_of(thread, sandbox).get(), _START_TIMEOUT_S)
    except TimeoutError as error:
        raise BrokenToolError(f"Chromium does not start within {_START_TIMEOUT_S:g} s: {INSTALL}.") from error


def check_browser() -> str:
    """The path of the browser that would start: the system's, otherwise playwright's.

    Raises:
        ValueError: there is no browser, or playwright is missing.
    """
    if importlib.util.find_spec("playwright") is None:
        raise ValueError(_NO_PLAYWRIGHT)
    browser = _system_browser() or next(map(str, sorted(_playwrights_folder().glob("chromium*"))), None)
    if browser is None:
        raise ValueError(f"Rendering pages needs Chromium: {INSTALL}.")
    return browser


def _system_browser() -> str | None:
    return next(filter(None, map(shutil.which, _EXECUTABLES)), None)


def _playwrights_folder() -> Path:
    """Where `playwright install` puts browsers."""
    chosen = os.environ.get("PLAYWRIGHT_BROWSERS_PATH", "")
    if chosen == "0":
        return (
            Path(importlib.import_module("playwright").__file__ or "").parent / "driver" / "package" / ".local-browsers"
        )
    return Path(chosen) if chosen else Path.home() / ".cache" / "ms-playwright"


class _Browser:
    """One Chromium, which is started again when it has died. Used in one event loop."""

    def __init__(self, sandbox: bool):
        self._sandbox = sandbox
        self._lock = asyncio.Lock()
        self._playwright: Any = None
        self._browser: Any = None

    async def get(self) -> Any:
        async with self._lock:
            if self._browser is None or not self._browser.is_connected():
                await self.close()
                self._browser = await self._start()
            return self._browser

    async def _start(self) -> Any:
        try:
            from playwright.async_api import Error, async_playwright
        except ModuleNotFoundError as error:
            raise BrokenToolError(_NO_PLAYWRIGHT) from error
        self._playwright = await async_playwright().start()
        try:
            return await self._playwright.chromium.launch(
                executable_path=_system_browser(),
                chromium_sandbox=self._sandbox,
                args=[*_NO_NETWORK, *_LIMITS],
                timeout=1000 * _START_TIMEOUT_S,
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except Error as error:
            raise BrokenToolError(f"Chromium does not start ({first_line(error)}): {INSTALL}.") from error

    async def close(self) -> None:
        playwright, self._playwright, self._browser = self._playwright, None, None
        if playwright is not None:
            # The browser ends with playwright.
            await playwright.stop()


#: (thread, sandbox) -> its browser.
_BROWSERS: dict[tuple[LoopThread, bool], _Browser] = {}


def _browser_of(thread: LoopThread, sandbox: bool | None) -> _Browser:
    key = thread, os.geteuid() != 0 if sandbox is None else sandbox
    if key not in _BROWSERS:
        _BROWSERS[key] = _Browser(key[1])
        thread.at_exit(_BROWSERS[key].close)
    return _BROWSERS[key]


async def _render(
    thread: LoopThread, sandbox: bool | None, document: Fetched, settings: FetchSettings, wait_s: float
) -> Fetched:
    from playwright.async_api import Error

    browser = await _browser_of(thread, sandbox).get()
    async with Fetcher(settings) as fetcher:
        try:
            # Each page has a context of its own: no cookie, no storage outlives it.
            context = await browser.new_context(
                user_agent=settings.user_agent, service_workers="block", accept_downloads=False
            )
            try:
                return await _open(context, document, fetcher, wait_s)
            finally:
                await _close(context)
        except Error as error:
            raise ToolError(f"{document.url}: the page cannot be rendered ({first_line(error)}).") from error


async def _open(context: Any, document: Fetched, fetcher: Fetcher, wait_s: float) -> Fetched:
    from playwright.async_api import TimeoutError as PlaywrightTimeout

    page = await context.new_page()
    context.on("page", lambda popup: asyncio.ensure_future(_close(popup)))
    await context.route("**/*", _Answers(document, fetcher).answer)
    deadline = asyncio.get_running_loop().time() + wait_s
    with contextlib.suppress(PlaywrightTimeout):
        await page.goto(document.url, wait_until="domcontentloaded", timeout=1000 * wait_s)
        left_s = max(0.1, deadline - asyncio.get_running_loop().time())
        await page.wait_for_load_state("networkidle", timeout=1000 * left_s)
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            html = await _html(context, page, fetcher.settings.max_bytes)
    except TimeoutError as error:
        raise ToolError(f"{document.url}: the page's scripts do not end.") from error
    headers = (("content-type", "text/html; charset=utf-8"),)
    return Fetched(page.url, document.status, document.reason, headers, html.encode("utf-8", errors="replace"))


async def _html(context: Any, page: Any, max_chars: int) -> str:
    """The current document, read in a world where the page's scripts cannot interfere."""
    session = await context.new_cdp_session(page)
    frame = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
    world = await session.send("Page.createIsolatedWorld", {"frameId": frame})
    expression = f"document.documentElement ? document.documentElement.outerHTML.slice(0, {max_chars + 1}) : ''"
    call = {"expression": expression, "contextId": world["executionContextId"], "returnByValue": True}
    html = (await session.send("Runtime.evaluate", call))["result"]["value"]
    if len(html) > max_chars:
        raise ToolError(f"{page.url}: the rendered page is larger than {max_chars} characters.")
    return html


async def _close(closable: Any) -> None:
    from playwright.async_api import Error

    # The browser ends a page that hangs; this code does not wait for it.
    with contextlib.suppress(Error, TimeoutError):
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await closable.close()


class _Answers:
    """Answers the requests of one page."""

    def __init__(self, document: Fetched, fetcher: Fetcher):
        self._document: Fetched | None = document
        self._fetcher = fetcher
        self._requests_left, self._bytes_left = _MAX_REQUESTS, _MAX_TOTAL_BYTES

    async def answer(self, route: Any) -> None:
        from playwright.async_api import Error

        try:
            try:
                fetched = await self._fetch(route.request)
            except ToolError:
                await _refuse(route)
                return
            headers = _joined((key, value) for key, value in fetched.headers if key not in _BODY_HEADERS)
            await route.fulfill(status=fetched.status, headers=headers, body=fetched.content)
        except Error:
            # The page is closed. Playwright's own task for the request would wait for ever; it ends with this one.
            raise asyncio.CancelledError from None

    async def _fetch(self, request: Any) -> Fetched:
        document, self._document = self._document, None
        if document is not None:
            return document
        if request.resource_type in _NOT_LOADED:
            raise ToolError("Not needed to read the page.")
        self._requests_left -= 1
        if self._requests_left < 0 or self._bytes_left < 0:
            raise ToolError("Too many requests.")
        headers = {key: value for key, value in request.headers.items() if key not in _OWN_HEADERS}
        fetched = await self._fetcher.fetch(
            request.url, method=request.method, headers=headers, content=request.post_data_buffer
        )
        self._bytes_left -= len(fetched.content)
        return fetched


async def _refuse(route: Any) -> None:
    if route.request.is_navigation_request():
        # The page stays as it is; a failed navigation would replace it by the browser's own error page.
        await route.fulfill(status=204)
    else:
        await route.abort("blockedbyclient")


def _joined(headers: Any) -> dict[str, str]:
    """Joins repeated headers as HTTP prescribes (cookies, which have no such form, by line breaks)."""
    joined: dict[str, str] = {}
    for key, value in headers:
        separator = "\n" if key == "set-cookie" else ", "
        joined[key] = f"{joined[key]}{separator}{value}" if key in joined else value
    return joined
