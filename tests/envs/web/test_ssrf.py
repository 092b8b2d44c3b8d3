"""Nothing that the model, a redirect or a name server says leads to a protected server.

Everything is on loopback: the attacker's site at 127.0.0.5, which the tool may open, and at the same port the protected
server at 127.0.0.1 and ::1, which it may not.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.tools import browse
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
    "mixed.test": [[PROTECTED_HOST, SITE_HOST]],
    "rebind.test": [[SITE_HOST], [PROTECTED_HOST]],
}


_TO = "http://127.0.0.1:{port}/{id}"
#: Name -> what the model asks for. {port}: of both servers; {site}: the attacker's site; {id}: the attempt's name.
#: Where private addresses are allowed, these do reach the protected server: otherwise the check would prove nothing.
REACHING = {
    # Spellings of the address.
    "plain": _TO,
    "localhost": "http://localhost:{port}/{id}",
    "decimal": "http://2130706433:{port}/{id}",
    "hexadecimal": "http://0x7f000001:{port}/{id}",
    "octal": "http://017700000001:{port}/{id}",
    "mixed_bases": "http://0x7f.0.1:{port}/{id}",
    "two_parts": "http://127.1:{port}/{id}",
    "zero": "http://0:{port}/{id}",
    "unspecified": "http://0.0.0.0:{port}/{id}",
    "ipv6": "http://[::1]:{port}/{id}",
    "ipv6_unspecified": "http://[::]:{port}/{id}",
    "ipv6_mapped": "http://[::ffff:127.0.0.1]:{port}/{id}",
    "capital_scheme": "HTTP://127.0.0.1:{port}/{id}",
    "fragment": "http://127.0.0.1:{port}/{id}#@example.com/",
    "question_mark": "http://127.0.0.1:{port}/{id}?@example.com/",
    "ideographic_dots": "http://127。0。0。1:{port}/{id}",
    # Names.
    "name": "http://internal.test:{port}/{id}",
    "name_ipv6": "http://internal6.test:{port}/{id}",
    "name_mapped": "http://mapped.test:{port}/{id}",
    "name_private_and_public": "http://mixed.test:{port}/{id}",
    "name_that_changes": "http://rebind.test:{port}/go/307?to=http://rebind.test:{port}/{id}",
    # Redirects of the attacker's site.
    "redirect_302": "{site}/go/302?to=" + _TO,
    "redirect_307": "{site}/go/307?to=" + _TO,
    "redirect_chain": "{site}/go/302?to={site}/go/301?to={site}/go/307?to=" + _TO,
    "redirect_to_name": "{site}/go/302?to=http://internal.test:{port}/{id}",
    "redirect_without_scheme": "{site}/go/302?to=//127.0.0.1:{port}/{id}",
    "redirect_of_name": "http://site.test:{port}/go/302?to=" + _TO,
}
OTHERS = {
    "localhost_capitals_and_dot": "http://LocalHost.:{port}/{id}",
    "dotted_octal": "http://0177.0.0.01:{port}/{id}",
    "user_name": "http://example.com@127.0.0.1:{port}/{id}",
    "fullwidth_digits": "http://１２７.０.０.１:{port}/{id}",
    "circled_digits": "http://①②⑦.⓪.⓪.①:{port}/{id}",
    "percent_encoded": "http://%31%32%37.0.0.1:{port}/{id}",
    "ipv6_compatible": "http://[::127.0.0.1]:{port}/{id}",
    "six_to_four": "http://[2002:7f00:1::]:{port}/{id}",
    "nat64": "http://[64:ff9b::7f00:1]:{port}/{id}",
    "link_local": "http://[fe80::1%25lo]:{port}/{id}",
    "metadata": "http://169.254.169.254/latest/meta-data/",
    "metadata_of_azure": "http://168.63.129.16/machine",
    "multicast": "http://224.0.0.1:{port}/{id}",
    "carrier_grade_nat": "http://100.100.100.200/latest/meta-data/",
    "backslash": "http://example.invalid\\@127.0.0.1:{port}/{id}",
    "nul_byte": "http://127.0.0.1%00.example.invalid:{port}/{id}",
    "no_scheme": "127.0.0.1:{port}/{id}",
    "file": "file:///etc/passwd",
    "ftp": "ftp://127.0.0.1:{port}/{id}",
    "data": "data:text/html,<iframe src=http://127.0.0.1:{port}/{id}>",
    "redirect_with_user": "{site}/go/302?to=http://a@127.0.0.1:{port}/{id}",
    "redirect_to_file": "{site}/go/302?to=file:///etc/passwd",
}


@pytest.fixture
def protected(monkeypatch) -> Iterator[list[WebServer]]:
    """The protected server at both loopback addresses, with the attacker's site and name server beside it."""
    monkeypatch.setattr(browse, "system_resolve", resolver())
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(PROTECTED_HOST, lambda handler: reply(handler, SECRET)))]
        port = servers[0].port
        # A machine may be without IPv6.
        with contextlib.suppress(OSError):
            servers.append(stack.enter_context(serving("::1", lambda handler: reply(handler, SECRET), port)))
        stack.enter_context(serving(SITE_HOST, attackers_site, port))
        yield servers


def attackers_site(handler) -> None:
    """/go/<status>?to=<url>"""
    path, _, query = handler.path.partition("?")
    if path.startswith("/go/"):
        reply(handler, "", int(path[4:]), {"Location": query.removeprefix("to=")})
    else:
        reply(handler, "the attacker's site", 200)


def resolver():
    """The attacker's name server, with the operating system's behind it."""
    asked: dict[str, int] = {}

    async def resolve(host: str, port: int) -> Sequence[str]:
        if host not in NAMES:
            return await system_resolve(host, port)
        asked[host] = asked.get(host, -1) + 1
        return NAMES[host][min(asked[host], len(NAMES[host]) - 1)]

    return resolve


def make(attempts: Mapping[str, str], port: int, allow_private: bool | list[str]) -> dict[str, ToolResult]:
    async def one(name: str, url: str) -> ToolResult:
        limits = {"ports": None, "max_attempts": 1, "max_concurrency": None, "timeout_s": 60.0}
        tool = BrowseTool(allow_private=allow_private, **limits)
        url = url.replace("{site}", f"http://{SITE_HOST}:{{port}}")
        return await run_tool(tool, url.replace("{id}", name).replace("{port}", str(port)))

    async def every() -> list[ToolResult]:
        return await asyncio.gather(*(one(*attempt) for attempt in attempts.items()))

    return dict(zip(attempts, asyncio.run(every()), strict=True))


def test_the_attempts_reach_a_server_that_is_not_protected(protected):
    make(REACHING, protected[0].port, True)
    asked = {path.strip("/").partition("?")[0] for server in protected for path in server.paths}
    assert set(REACHING) <= asked


def test_no_url_and_no_redirect_reaches_the_protected_server(protected):
    results = make(REACHING | OTHERS, protected[0].port, [SITE_HOST])
    assert [server.num_connections for server in protected] == [0] * len(protected)
    assert {result.status for result in results.values()} == {ToolStatus.ERROR}
    assert [name for name, result in results.items() if SECRET in result.text or "root:" in result.text] == []
