"""Attempts to reach a protected server through the browse tool, and their outcomes.

Everything is on loopback: the attacker's site at 127.0.0.5, which the tool may open, and at the same port the protected
server at 127.0.0.1 and ::1, which it may not. With `allow_private=True` the attempts that are marked so do reach it:
else the check would prove nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.tool import ToolResult, run_tool
from rllib_arpo.envs.web.addresses import system_resolve
from tests.helpers.web_server import WebServer, reply, serving

SITE_HOST, PROTECTED_HOST = "127.0.0.5", "127.0.0.1"
SECRET = "the secret of the protected server"

#: Names of the attacker's DNS -> the answers, one list after another; the last one stays.
NAMES: dict[str, list[list[str]]] = {
    "site.test": [[SITE_HOST]],
    "internal.test": [[PROTECTED_HOST]],
    "internal6.test": [["::1"]],
    "mapped.test": [["::ffff:127.0.0.1"]],
    "zero.test": [["0.0.0.0"]],
    "mixed.test": [[PROTECTED_HOST, SITE_HOST]],
    "rebind.test": [[SITE_HOST], [PROTECTED_HOST]],
    "rebind-script.test": [[SITE_HOST], [PROTECTED_HOST]],
    "rebind-robots.test": [[SITE_HOST], [PROTECTED_HOST]],
}


@dataclass(frozen=True)
class Attempt:
    """One attempt, or several in one page.

    Attributes:
        url: what the model asks for. {port}: of both servers; {site}: the attacker's site; {id}: the attempt's name.
        page: what the attacker's site serves at /page/{id}, rendered by the browser.
        robots: the tool honours robots.txt.
        moves: the page tries to put another one in its place.
        frames: attempts whose pages are frames of this attempt's page: they are made together with it.
        reaches: whether the protected server is reached when private addresses are allowed.
    """

    name: str
    url: str = "{site}/page/{id}"
    page: str | None = None
    robots: bool = False
    reaches: bool = True
    moves: bool = False
    frames: Sequence[Attempt] = ()


def _urls(reaches: bool, **urls: str) -> list[Attempt]:
    return [Attempt(name, url, reaches=reaches) for name, url in urls.items()]


def _pages(reaches: bool, **pages: str) -> list[Attempt]:
    return [Attempt(name, page=page, reaches=reaches) for name, page in pages.items()]


_TO = "http://127.0.0.1:{port}/{id}"
ATTEMPTS: Sequence[Attempt] = [
    # Spellings of the address.
    *_urls(
        True,
        plain=_TO,
        localhost="http://localhost:{port}/{id}",
        decimal="http://2130706433:{port}/{id}",
        hexadecimal="http://0x7f000001:{port}/{id}",
        octal="http://017700000001:{port}/{id}",
        mixed_bases="http://0x7f.0.1:{port}/{id}",
        two_parts="http://127.1:{port}/{id}",
        zero="http://0:{port}/{id}",
        unspecified="http://0.0.0.0:{port}/{id}",
        ipv6="http://[::1]:{port}/{id}",
        ipv6_unspecified="http://[::]:{port}/{id}",
        ipv6_mapped="http://[::ffff:127.0.0.1]:{port}/{id}",
        capital_scheme="HTTP://127.0.0.1:{port}/{id}",
        fragment="http://127.0.0.1:{port}/{id}#@example.com/",
        question_mark="http://127.0.0.1:{port}/{id}?@example.com/",
        ideographic_dots="http://127。0。0。1:{port}/{id}",
    ),
    *_urls(
        False,
        localhost_capitals_and_dot="http://LocalHost.:{port}/{id}",
        dotted_octal="http://0177.0.0.01:{port}/{id}",
        user_name="http://example.com@127.0.0.1:{port}/{id}",
        fullwidth_digits="http://１２７.０.０.１:{port}/{id}",
        circled_digits="http://①②⑦.⓪.⓪.①:{port}/{id}",
        percent_encoded="http://%31%32%37.0.0.1:{port}/{id}",
        ipv6_compatible="http://[::127.0.0.1]:{port}/{id}",
        six_to_four="http://[2002:7f00:1::]:{port}/{id}",
        nat64="http://[64:ff9b::7f00:1]:{port}/{id}",
        link_local="http://[fe80::1%25lo]:{port}/{id}",
        metadata="http://169.254.169.254/latest/meta-data/",
        metadata_of_azure="http://168.63.129.16/machine",
        multicast="http://224.0.0.1:{port}/{id}",
        carrier_grade_nat="http://100.100.100.200/latest/meta-data/",
        backslash="http://example.invalid\\@127.0.0.1:{port}/{id}",
        nul_byte="http://127.0.0.1%00.example.invalid:{port}/{id}",
        no_scheme="127.0.0.1:{port}/{id}",
        file="file:///etc/passwd",
        ftp="ftp://127.0.0.1:{port}/{id}",
        data="data:text/html,<iframe src=http://127.0.0.1:{port}/{id}>",
    ),
    # Names.
    *_urls(
        True,
        name="http://internal.test:{port}/{id}",
        name_ipv6="http://internal6.test:{port}/{id}",
        name_mapped="http://mapped.test:{port}/{id}",
        name_private_and_public="http://mixed.test:{port}/{id}",
        name_that_changes="http://rebind.test:{port}/go/307?to=http://rebind.test:{port}/{id}",
    ),
    # Redirects of the attacker's site.
    *_urls(
        True,
        redirect_302="{site}/go/302?to=" + _TO,
        redirect_307="{site}/go/307?to=" + _TO,
        redirect_chain="{site}/go/302?to={site}/go/301?to={site}/go/307?to=" + _TO,
        redirect_to_name="{site}/go/302?to=http://internal.test:{port}/{id}",
        redirect_without_scheme="{site}/go/302?to=//127.0.0.1:{port}/{id}",
        redirect_of_name="http://site.test:{port}/go/302?to=" + _TO,
    ),
    *_urls(
        False,
        redirect_with_user="{site}/go/302?to=http://a@127.0.0.1:{port}/{id}",
        redirect_to_file="{site}/go/302?to=file:///etc/passwd",
    ),
    Attempt("robots_redirect", "http://rebind-robots.test:{port}/{id}", robots=True),
    # What a rendered page asks for.
    *_pages(
        True,
        script=f"<script src='{_TO}'></script>",
        script_redirected="<script src='{site}/go/302?to=" + _TO + "'></script>",
        module=f"<script type=module>import '{_TO}'</script>",
        iframe=f"<iframe src='{_TO}'></iframe>",
        object=f"<object data='{_TO}'></object>",
        fetch=f"<script>fetch('{_TO}', {{mode: 'no-cors'}})</script>",
        xhr=f"<script>let x = new XMLHttpRequest(); x.open('GET', '{_TO}'); x.send()</script>",
        event_source=f"<script>new EventSource('{_TO}')</script>",
        prefetch=f"<link rel=preload as=image href='{_TO}'><link rel=prefetch href='{_TO}'>",
        worker=f"<script>new Worker(URL.createObjectURL(new Blob([\"importScripts('{_TO}')\"])))</script>",
        worker_fetch=f"<script>new Worker(URL.createObjectURL(new Blob([\"fetch('{_TO}', {{mode: 'no-cors'}})\"])))"
        "</script>",
    ),
    Attempt("meta_refresh", page=f"<meta http-equiv=refresh content='0;url={_TO}'>", moves=True),
    Attempt("location", page=f"<script>location = '{_TO}'</script>", moves=True),
    Attempt("window_open", page=f"<script>window.open('{_TO}')</script>", moves=True),
    Attempt(
        "form", page=f"<form method=post action='{_TO}'></form><script>document.forms[0].submit()</script>", moves=True
    ),
    Attempt(
        "script_after_rebinding", "http://rebind-script.test:{port}/page/{id}", page="<script>fetch('/{id}')</script>"
    ),
    *_pages(
        False,
        image=f"<img src='{_TO}'>",
        video=f"<video src='{_TO}' autoplay></video>",
        style_sheet=f"<link rel=stylesheet href='{_TO}'>",
        style_import=f"<style>@import '{_TO}'; body {{background: url({_TO})}}</style>",
        font=f"<style>@font-face {{font-family: f; src: url({_TO})}} p {{font-family: f}}</style><p>x</p>",
        preconnect="<link rel=preconnect href='http://127.0.0.1:{port}'><link rel=dns-prefetch href='//localhost'>",
        speculation=f'<script type=speculationrules>{{"prefetch": [{{"source": "list", "urls": ["{_TO}"]}}]}}</script>',
        beacon=f"<a id=a ping='{_TO}' href='#'>x</a><script>a.click()</script>",
        websocket="<script>new WebSocket('ws://127.0.0.1:{port}/{id}')</script>",
        web_transport="<script>new WebTransport('https://127.0.0.1:{port}/{id}')</script>",
        web_rtc="<script>let c = new RTCPeerConnection({iceServers: [{urls: ['stun:127.0.0.1:{port}',"
        " 'turn:127.0.0.1:{port}?transport=tcp'], username: 'a', credential: 'b'}}]}});"
        " c.createDataChannel('a'); c.createOffer().then(o => c.setLocalDescription(o))</script>",
        service_worker="<script>navigator.serviceWorker.register('/page/worker.js')</script>",
        shared_worker=f"<script>new SharedWorker(URL.createObjectURL(new Blob([\"fetch('{_TO}')\"])))</script>",
        file_iframe="<iframe src='file:///etc/passwd'></iframe><script>location = 'file:///etc/passwd'</script>",
    ),
]


def in_one_page(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The same attempts, those of pages in the frames of a single page, which is quicker by far.

    Pages that move on are also opened by themselves.
    """
    pages = [attempt for attempt in attempts if attempt.page is not None]
    frames = "".join(f"<iframe src='{_filled(a.url, a)}'></iframe>" for a in pages)
    rest = [attempt for attempt in attempts if attempt.page is None or attempt.moves]
    return [*rest, Attempt("all_in_one_page", page=frames, reaches=False, frames=pages)] if pages else rest


@dataclass
class Outcome:
    """What became of the attempts.

    Attributes:
        results: attempt -> what the model reads.
        reached: names of the attempts whose requests the protected server got.
        num_connections, num_datagrams: that it got in all, with or without a request.
    """

    results: dict[str, ToolResult]
    reached: set[str]
    num_connections: int
    num_datagrams: int

    @property
    def leaks(self) -> list[str]:
        """The attempts whose result holds the protected server's secret, or a local file."""
        return [name for name, r in self.results.items() if SECRET in r.text or "root:" in r.text]


def run_attempts(attempts: Sequence[Attempt], allow_private: bool, num_concurrent: int = 8) -> Outcome:
    """Runs the attempts; `allow_private`: the control, for which nothing is protected."""
    with _protected() as (servers, datagrams), serving(SITE_HOST, _site(attempts, servers[0].port), servers[0].port):
        results = asyncio.run(_run_all(attempts, servers[0].port, allow_private, num_concurrent))
        paths = [path for server in servers for path in server.paths]
        names = {part.name for attempt in attempts for part in (attempt, *attempt.frames)}
        reached = {name for path in paths if (name := path.strip("/").partition("?")[0]) in names}
        return Outcome(results, reached, sum(s.num_connections for s in servers), _received(datagrams))


async def _run_all(attempts: Sequence[Attempt], port: int, allow_private: bool, num: int) -> dict[str, ToolResult]:
    places = asyncio.Semaphore(num)

    async def run(attempt: Attempt) -> ToolResult:
        async with places:
            tool = _tool(attempt, allow_private)
            return await run_tool(tool, _filled(attempt.url, attempt, port))

    return dict(zip([a.name for a in attempts], await asyncio.gather(*map(run, attempts)), strict=True))


def _tool(attempt: Attempt, allow_private: bool) -> BrowseTool:
    return BrowseTool(
        render=attempt.page is not None,
        render_wait_s=10.0 if attempt.frames else 3.0,
        robots=attempt.robots,
        allow_private=True if allow_private else [SITE_HOST],
        ports=None,
        resolver=_resolver(),
        max_attempts=1,
        max_concurrency=None,
        timeout_s=60.0,
    )


def _resolver():
    """The attacker's name server, with the operating system's behind it."""
    asked: dict[str, int] = {}

    async def resolve(host: str, port: int) -> Sequence[str]:
        if host not in NAMES:
            return await system_resolve(host, port)
        answers = NAMES[host]
        asked[host] = asked.get(host, -1) + 1
        return answers[min(asked[host], len(answers) - 1)]

    return resolve


@contextlib.contextmanager
def _protected() -> Iterator[tuple[list[WebServer], socket.socket]]:
    """The protected server at both loopback addresses, and a socket for datagrams at the same port."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(serving(PROTECTED_HOST, lambda handler: reply(handler, SECRET)))
        servers = [first]
        # A machine may be without IPv6.
        with contextlib.suppress(OSError):
            servers.append(stack.enter_context(serving("::1", lambda h: reply(h, SECRET), first.port)))
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind((PROTECTED_HOST, first.port))
        datagrams.setblocking(False)
        yield servers, datagrams


def _received(datagrams: socket.socket) -> int:
    number = 0
    with contextlib.suppress(BlockingIOError):
        while datagrams.recv(4096):
            number += 1
    return number


def _site(attempts: Sequence[Attempt], port: int):
    """The attacker's site: /page/<name>, /go/<status>?to=<url>, /robots.txt (a redirect to the protected server)."""
    every = [part for attempt in attempts for part in (attempt, *attempt.frames)]
    pages = {f"/page/{a.name}": _filled(a.page, a, port) for a in every if a.page is not None}

    def route(handler) -> None:
        path, _, query = handler.path.partition("?")
        if path.startswith("/go/"):
            reply(handler, "", int(path[4:]), {"Location": query.removeprefix("to=")})
        elif path == "/robots.txt":
            reply(handler, "", 302, {"Location": f"http://{PROTECTED_HOST}:{port}/robots_redirect"})
        elif path in pages:
            reply(handler, pages[path])
        else:
            reply(handler, "the attacker's site", 200)

    return route


def _filled(template: str, attempt: Attempt, port: int | None = None) -> str:
    """The template with its fields filled in; the port stays where it is not known yet."""
    template = template.replace("{id}", attempt.name).replace("{site}", f"http://{SITE_HOST}:{{port}}")
    return template if port is None else template.replace("{port}", str(port))


def missed(attempts: Sequence[Attempt], control: Outcome) -> list[str]:
    """The attempts that ought to reach the unprotected server and did not: they would prove nothing."""
    every = [part for attempt in attempts for part in (attempt, *attempt.frames)]
    return [a.name for a in every if a.reaches and a.name not in control.reached]


def refused_in_words(outcome: Outcome) -> bool:
    """Whether each attempt ended by an error for the model or with a page, and none by a time limit."""
    return all(result.text and result.status != ToolStatus.TIMEOUT for result in outcome.results.values())
