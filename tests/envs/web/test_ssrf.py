"""Nothing that the model, a page, a redirect or a name server says leads to a protected server."""

import asyncio
import os

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.web import render
from rllib_arpo.envs.web.browser import Browser
from tests.envs.web import ssrf
from tests.helpers import web_server


def check(attempts):
    control = ssrf.run_attempts(attempts, allow_private=True)
    assert ssrf.missed(attempts, control) == []
    outcome = ssrf.run_attempts(attempts, allow_private=False)
    assert outcome.reached == set()
    assert (outcome.num_connections, outcome.num_datagrams) == (0, 0)
    assert outcome.leaks == []
    return outcome


def test_no_url_and_no_redirect_reaches_the_protected_server():
    attempts = [a for a in ssrf.ATTEMPTS if a.page is None]
    outcome = check(attempts)
    assert {result.status for result in outcome.results.values()} == {ToolStatus.ERROR}


@pytest.mark.slow
def test_no_rendered_page_reaches_the_protected_server(chromium):
    attempts = [a for a in ssrf.ATTEMPTS if a.page is not None]
    assert ssrf.refused_in_words(check(ssrf.in_one_page(attempts)))


@pytest.mark.slow
def test_the_browser_has_no_network_of_its_own(chromium):
    """If no one answers its requests, Chromium reaches neither loopback nor names."""
    from playwright.async_api import Error

    async def visit(*urls: str) -> None:
        browser = Browser(render._system_browser(), sandbox=os.geteuid() != 0)
        page = await (await browser.get()).new_page()
        for url in urls:
            with pytest.raises(Error, match="net::ERR_"):
                await page.goto(url, timeout=10_000)
        await browser.close()

    with web_server.serving("127.0.0.1", lambda handler: None) as server:
        hosts = ("127.0.0.1", "localhost", "2130706433")
        asyncio.run(visit(*(f"http://{host}:{server.port}/" for host in hosts)))
        assert server.num_connections == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allow_private": "127.0.0.1"}, "allow_private must be True, False or a list of hosts, not '127.0.0.1'."),
        ({"allow_private": ["10.0.0.0/99"]}, "allow_private: '10.0.0.0/99' is neither a host name nor a network."),
        ({"max_redirects": -1}, "The browse tool needs max_page_bytes >= 1, max_redirects >= 0 and render_wait_s > 0."),
        ({"render_memory_mb": 100}, "render_memory_mb must be at least 1536, not 100."),
        ({"summary_model": {"base_url": "http://a/v1"}}, "summary_model has no 'model'."),
        ({"summary_model": {"basurl": "http://a"}}, "Unknown key of summary_model 'basurl': did you mean 'base_url'?"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError) as error:
        BrowseTool(**options)
    assert str(error.value) == message
