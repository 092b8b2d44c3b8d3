"""Pages that Chromium renders, and robots.txt: what is read, and attacks on the browser and on a protected server."""

import asyncio
import os
import shutil
import socket

import psutil
import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.tool import ToolResult
from rllib_arpo.envs.web import browser, render
from rllib_arpo.envs.web.browser import Browser
from rllib_arpo.envs.web.render import INSTALL
from tests.envs.web.test_pages import ARTICLE, ARTICLE_READ, page, read, redirect
from tests.envs.web.test_ssrf import SITE_HOST, asked_of, attackers_site, filled, leaks, make, protected_beside
from tests.helpers.web_server import reply, serving

ERROR = ToolStatus.ERROR


@pytest.fixture
def chromium() -> None:
    pytest.importorskip("playwright")
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("Chromium is not installed: pages are not rendered.")
    BrowseTool(render=True).prepare()


BUILT = "<title>Built</title><p id=a></p><script>document.getElementById('a').textContent = 7 * 12</script>"
DATA = "<p id=p></p><script>fetch('/json').then(r => r.text()).then(t => p.textContent = t)</script>"
DIALOG = "<script>alert(1); document.write('<p>after the dialog')</script>"
#: Page -> its source, what is read, seconds for its scripts.
RENDERED = {
    "plain": (ARTICLE, ARTICLE_READ, 4.0),
    "built": (BUILT, "Title: Built\nURL: HOST/built\n\n84", 4.0),
    "data": (DATA, 'URL: HOST/data\n\n{"a": 1}', 4.0),
    "moves_on": ("<p>old</p><script>location = '/plain'</script>", ARTICLE_READ, 4.0),
    "dialog": (DIALOG, "URL: HOST/dialog\n\nafter the dialog", 4.0),
    "hangs": ("<p>x</p><script>while (true);</script>", "HOST/hangs: the page's scripts do not end.", 1.0),
    "large": (
        "<script>document.write('<p>' + 'x'.repeat(1.2e6))</script>",
        "HOST/large: the rendered page is larger than 1048576 characters.",
        60.0,
    ),
}


@pytest.mark.slow
def test_every_page_that_scripts_build_gives_its_text_or_its_error(chromium):
    served = {name: page(source) for name, (source, _, _) in RENDERED.items()}
    served["json"] = page('{"a": 1}', "application/json")
    for name, (_, text, wait_s) in RENDERED.items():
        found = read(served, [name], render=True, render_wait_s=wait_s)[name]
        assert found == ToolResult(text, ERROR if text.startswith("HOST") else ToolStatus.OK)


@pytest.mark.slow
@pytest.mark.parametrize(("script", "wait_s", "text"), [
    # It is read as it is after this time; the others end by themselves, later on a busy machine.
    ("location.reload()", 5.0, "URL: HOST/attack\n\nx"),
    ("for (i = 0; i < 3000; i++) open('about:blank')", 55.0,
     "HOST/attack: the page makes too many requests, frames or windows."),
    # Three gigabytes.
    ("a = []; for (i = 0; i < 30; i++) a.push(new Uint8Array(1e8).fill(1))", 55.0,
     "HOST/attack: the page cannot be rendered (Page.goto: Page crashed)."),
])  # fmt: skip
def test_a_page_that_attacks_the_browser_ends_and_the_next_is_read(chromium, script, wait_s, text):
    options = {"render": True, "render_memory_mb": 2048, "render_wait_s": wait_s}
    served = {"attack": page(f"<p>x</p><script>{script}</script>"), "plain": page(ARTICLE)}
    assert read(served, ["attack"], **options)["attack"].text == text
    # Its browser may have ended with it.
    assert read(served, ["plain"], **options, max_attempts=3)["plain"].text == ARTICLE_READ


_TO = "http://127.0.0.1:{port}/{id}"
#: What a rendered page asks for: these reach a server that is not protected.
REACHING = {
    "script": f"<script src='{_TO}'></script>",
    "script_redirected": "<script src='{site}/go/302?to=" + _TO + "'></script>",
    "module": f"<script type=module>import '{_TO}'</script>",
    "iframe": f"<iframe src='{_TO}'></iframe>",
    "object": f"<object data='{_TO}'></object>",
    "fetch": f"<script>fetch('{_TO}', {{mode: 'no-cors'}})</script>",
    "xhr": f"<script>let x = new XMLHttpRequest(); x.open('GET', '{_TO}'); x.send()</script>",
    "event_source": f"<script>new EventSource('{_TO}')</script>",
    "prefetch": f"<link rel=preload as=image href='{_TO}'><link rel=prefetch href='{_TO}'>",
    "worker": f"<script>new Worker(URL.createObjectURL(new Blob([\"importScripts('{_TO}')\"])))</script>",
    "worker_fetch": (
        f"<script>new Worker(URL.createObjectURL(new Blob([\"fetch('{_TO}', {{mode: 'no-cors'}})\"])))</script>"
    ),
}
#: These put another page in their own place.
MOVING = {
    "meta_refresh": f"<meta http-equiv=refresh content='0;url={_TO}'>",
    "location": f"<script>location = '{_TO}'</script>",
    "window_open": f"<script>window.open('{_TO}')</script>",
    "form": f"<form method=post action='{_TO}'></form><script>document.forms[0].submit()</script>",
}
OTHERS = {
    "image": f"<img src='{_TO}'>",
    "video": f"<video src='{_TO}' autoplay></video>",
    "style_sheet": f"<link rel=stylesheet href='{_TO}'>",
    "style_import": f"<style>@import '{_TO}'; body {{background: url({_TO})}}</style>",
    "font": f"<style>@font-face {{font-family: f; src: url({_TO})}} p {{font-family: f}}</style><p>x</p>",
    "preconnect": "<link rel=preconnect href='http://127.0.0.1:{port}'><link rel=dns-prefetch href='//localhost'>",
    "speculation": f'<script type=speculationrules>{{"prefetch": [{{"source": "list", "urls": ["{_TO}"]}}]}}</script>',
    "beacon": f"<a id=a ping='{_TO}' href='#'>x</a><script>a.click()</script>",
    "websocket": "<script>new WebSocket('ws://127.0.0.1:{port}/{id}')</script>",
    "web_transport": "<script>new WebTransport('https://127.0.0.1:{port}/{id}')</script>",
    "web_rtc": (
        "<script>let c = new RTCPeerConnection({iceServers: [{urls: ['stun:127.0.0.1:{port}',"
        " 'turn:127.0.0.1:{port}?transport=tcp'], username: 'a', credential: 'b'}}]}});"
        " c.createDataChannel('a'); c.createOffer().then(o => c.setLocalDescription(o))</script>"
    ),
    "service_worker": "<script>navigator.serviceWorker.register('/page/worker.js')</script>",
    "shared_worker": f"<script>new SharedWorker(URL.createObjectURL(new Blob([\"fetch('{_TO}')\"])))</script>",
    "file_iframe": "<iframe src='file:///etc/passwd'></iframe><script>location = 'file:///etc/passwd'</script>",
}
#: The name of this page's server leads to the protected one from the second look-up on.
REBINDING = {"script_after_rebinding": "<script>fetch('/{id}')</script>"}
PAGES = REACHING | MOVING | OTHERS | REBINDING


@pytest.mark.slow
def test_no_rendered_page_reaches_the_protected_server(chromium):
    """All pages are frames of one, which is quicker by far; those that move on are also opened by themselves."""

    def site(handler) -> None:
        port = handler.server.server_address[1]
        name = handler.path.removeprefix("/page/")
        if name == "all":
            frames = (f"<iframe src='{filled(where(name), name, port)}'></iframe>" for name in PAGES)
            reply(handler, "".join(frames))
        elif name in PAGES:
            reply(handler, filled(PAGES[name], name, port))
        else:
            attackers_site(handler)

    def where(name: str) -> str:
        return "http://rebind-script.test:{port}/page/{id}" if name in REBINDING else "{site}/page/{id}"

    def run(allow_private) -> tuple[set[str], list[int], dict[str, ToolResult]]:
        with protected_beside(site) as servers, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            port = servers[0].port
            datagrams.bind(("127.0.0.1", port))
            datagrams.setblocking(False)
            results = make({name: where(name) for name in MOVING}, port, allow_private, render=True, render_wait_s=3.0)
            results |= make({"all": where("all")}, port, allow_private, render=True, render_wait_s=10.0)
            if allow_private is not True:
                with pytest.raises(BlockingIOError):
                    datagrams.recv(4096)
            return asked_of(servers), [server.num_connections for server in servers], results

    assert {*REACHING, *MOVING, *REBINDING} <= run(True)[0]
    asked, connections, results = run([SITE_HOST])
    assert (asked, set(connections), leaks(results)) == (set(), {0}, [])
    assert all(result.text and result.status != ToolStatus.TIMEOUT for result in results.values())


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

    with serving("127.0.0.1", lambda handler: None) as server:
        hosts = ("127.0.0.1", "localhost", "2130706433")
        asyncio.run(visit(*(f"http://{host}:{server.port}/" for host in hosts)))
        assert server.num_connections == 0


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["chromium", "python"])
def test_a_browser_that_dies_is_started_again(chromium, dies):
    def shown() -> str:
        return read({"hello": page("<p>hello")}, render=True)["hello"].text

    tool = BrowseTool(render=True)
    assert shown().endswith("hello")
    first = psutil.Process(render._browser_of(tool.chromium_sandbox, tool.render_memory_mb).process.pid)
    victim = next(one for one in [first, *first.children(recursive=True)] if dies in one.name())
    victim.kill()
    victim.wait(60)
    assert shown().endswith("hello")


@pytest.mark.slow
def test_a_page_whose_fetch_has_a_defect_is_not_shown_without_what_it_asked_for(chromium, monkeypatch):
    class Defect(render.Fetcher):
        async def fetch(self, *_args, **_kwargs):
            raise ZeroDivisionError("a defect")

    monkeypatch.setattr(render, "Fetcher", Defect)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        read({"page": page('<p>hello<script src="/a.js"></script>')}, render=True)


def test_without_a_browser_rendering_is_refused_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "browsers"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(ValueError) as error:
        BrowseTool(render=True)
    assert str(error.value) == f"Rendering pages needs Chromium: {INSTALL}."
    (tmp_path / "browsers" / "chromium-1000").mkdir(parents=True)
    assert BrowseTool(render=True).render
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError) as error:
        BrowseTool(render=True)
    assert str(error.value) == f"Rendering pages needs playwright (pip install playwright); {INSTALL}."


def test_a_browser_that_does_not_start_in_time_is_a_broken_tool(monkeypatch):
    async def never(self, *page):
        await asyncio.Event().wait()

    monkeypatch.setattr(render.BrowserProcess, "ask", never)
    monkeypatch.setattr(render, "_START_TIMEOUT_S", 0.1)
    with pytest.raises(BrokenToolError, match=r"Chromium does not start within 0\.1 s"):
        render.prepare_browser(None, 4096)


def test_a_browser_that_gets_no_process_is_broken():
    class Short:
        async def get(self):
            raise BlockingIOError("no process is left")

    async def ask():
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        browser.send(writer, None)
        await browser._serve_one(theirs, Short())
        try:
            return await browser.receive(reader)
        finally:
            writer.close()

    assert asyncio.run(ask()) == ("broken", "no process is left")


ROBOTS = {
    "robots.txt": page("User-agent: *\nDisallow: /private_*\n", "text/plain"),
    "private_area": page(ARTICLE),
    "to_private_area": redirect("/private_area"),
}


def test_what_robots_txt_forbids_is_not_fetched_and_it_leads_to_no_protected_server():
    forbidden = ToolResult("HOST/private_area: the site's robots.txt forbids fetching this page.", ERROR)
    names = ["private_area", "to_private_area"]
    assert read(ROBOTS, names, robots=True) == dict.fromkeys(names, forbidden)

    def site(handler) -> None:
        if handler.path == "/robots.txt":
            to = f"http://127.0.0.1:{handler.server.server_address[1]}/robots_redirect"
            return reply(handler, "", 302, {"Location": to})
        return attackers_site(handler)

    attempt = {"robots_redirect": "http://rebind-robots.test:{port}/{id}"}
    for allow_private, reached in ((True, attempt.keys()), ([SITE_HOST], set())):
        with protected_beside(site) as servers:
            make(attempt, servers[0].port, allow_private, robots=True)
            assert asked_of(servers) & attempt.keys() == reached
