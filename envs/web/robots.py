"""robots.txt: whether a site allows a page to be fetched (RFC 9309)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import httpx

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.web.fetch import Fetcher
from rllib_arpo.envs.web.readable import ask_reader

#: Seconds for which a site's rules are kept, and how many sites' rules.
KEEP_S, MAX_SITES = 3600.0, 4096
#: Bytes of a robots.txt that count; RFC 9309 demands 500 KiB.
MAX_BYTES = 500 << 10
_ALLOW_ALL, _REFUSE_ALL = "User-agent: *\nAllow: /\n", "User-agent: *\nDisallow: /\n"

#: Address of a robots.txt -> (when its text is too old, its text).
_TEXTS: dict[str, tuple[float, str]] = {}


def robots_check(fetcher: Fetcher) -> Callable[[httpx.URL], Awaitable[None]]:
    """A check that raises a `ToolError` for URLs that their site's robots.txt forbids to the fetcher's user agent."""

    async def check(url: httpx.URL) -> None:
        robots_txt = await _robots_txt_of(url, fetcher)
        arguments = {"robots_txt": robots_txt, "url": str(url), "user_agent": fetcher.settings.user_agent}
        # Not in this process: wildcards in the rules can make them slow to match.
        if not await ask_reader("may_fetch", **arguments):
            raise ToolError(f"{url}: the site's robots.txt forbids fetching this page.")

    return check


async def _robots_txt_of(url: httpx.URL, fetcher: Fetcher) -> str:
    """The rules of the URL's site, as they were during the last hour."""
    address = str(url.copy_with(raw_path=b"/robots.txt", fragment=None))
    expires, text = _TEXTS.get(address, (0.0, ""))
    if time.monotonic() >= expires:
        text = await _robots_txt(address, fetcher)
        if len(_TEXTS) >= MAX_SITES:
            _TEXTS.clear()
        _TEXTS[address] = time.monotonic() + KEEP_S, text
    return text


async def _robots_txt(url: str, fetcher: Fetcher) -> str:
    """The file; a site without one allows everything, and a site whose server fails allows nothing."""
    fetched = await fetcher.fetch(url)
    if 200 <= fetched.status < 300:
        return fetched.content[:MAX_BYTES].decode("utf-8", errors="replace")
    return _ALLOW_ALL if 400 <= fetched.status < 500 and fetched.status != 429 else _REFUSE_ALL
