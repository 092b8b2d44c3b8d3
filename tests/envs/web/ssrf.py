"""Attempts to reach a protected server through the browse tool, and their outcomes.

Everything is on loopback: the attacker's site at 127.0.0.5, which the tool may open, and at the same port the protected
server at 127.0.0.1 and ::1, which it may not. With `allow_private=True` the attempts that are marked so do reach it:
else the check would prove nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
}


@dataclass(frozen=True)
class Attempt:
    """One attempt.

    Attributes:
        url: what the model asks for. {port}: of both servers; {site}: the attacker's site; {id}: the attempt's name.
        reaches: whether the protected server is reached when private addresses are allowed.
    """

    name: str
    url: str
    reaches: bool = True


def _urls(reaches: bool, **urls: str) -> list[Attempt]:
    return [Attempt(name, url, reaches=reaches) for name, url in urls.items()]


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
]


@dataclass
class Outcome:
    """What became of the attempts.

    Attributes:
        results: attempt -> what the model reads.
        reached: names of the attempts whose requests the protected server got.
        num_connections: that it got in all, with or without a request.
    """

    results: dict[str, ToolResult]
    reached: set[str]
    num_connections: int

    @property
    def leaks(self) -> list[str]:
        """The attempts whose result holds the protected server's secret, or a local file."""
        return [name for name, r in self.results.items() if SECRET in r.text or "root:" in r.text]


def run_attempts(attempts: Sequence[Attempt], allow_private: bool, num_concurrent: int = 8) -> Outcome:
    """Runs the attempts; `allow_private`: the control, for which nothing is protected."""
    with _protected() as servers, serving(SITE_HOST, _site, servers[0].port):
        results = asyncio.run(_run_all(attempts, servers[0].port, allow_private, num_concurrent))
        paths = [path for server in servers for path in server.paths]
        names = {attempt.name for attempt in attempts}
        reached = {name for path in paths if (name := path.strip("/").partition("?")[0]) in names}
        return Outcome(results, reached, sum(s.num_connections for s in servers))


async def _run_all(attempts: Sequence[Attempt], port: int, allow_private: bool, num: int) -> dict[str, ToolResult]:
    places = asyncio.Semaphore(num)

    async def run(attempt: Attempt) -> ToolResult:
        async with places:
            tool = _tool(allow_private)
            return await run_tool(tool, _filled(attempt.url, attempt, port))

    return dict(zip([a.name for a in attempts], await asyncio.gather(*map(run, attempts)), strict=True))


def _tool(allow_private: bool) -> BrowseTool:
    return BrowseTool(
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
def _protected() -> Iterator[list[WebServer]]:
    """The protected server at both loopback addresses."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(serving(PROTECTED_HOST, lambda handler: reply(handler, SECRET)))
        servers = [first]
        # A machine may be without IPv6.
        with contextlib.suppress(OSError):
            servers.append(stack.enter_context(serving("::1", lambda h: reply(h, SECRET), first.port)))
        yield servers


def _site(handler) -> None:
    """The attacker's site: /go/<status>?to=<url>."""
    path, _, query = handler.path.partition("?")
    if path.startswith("/go/"):
        reply(handler, "", int(path[4:]), {"Location": query.removeprefix("to=")})
    else:
        reply(handler, "the attacker's site", 200)


def _filled(template: str, attempt: Attempt, port: int | None = None) -> str:
    """The template with its fields filled in; the port stays where it is not known yet."""
    template = template.replace("{id}", attempt.name).replace("{site}", f"http://{SITE_HOST}:{{port}}")
    return template if port is None else template.replace("{port}", str(port))


def missed(attempts: Sequence[Attempt], control: Outcome) -> list[str]:
    """The attempts that ought to reach the unprotected server and did not: they would prove nothing."""
    return [a.name for a in attempts if a.reaches and a.name not in control.reached]
