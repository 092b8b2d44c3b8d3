"""The browse tool's argument, its cache, its browser agent, TLS."""

import datetime
import ssl

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.tools import browse
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.tool import ToolResult
from rllib_arpo.envs.web import fetch
from tests.helpers import web_server
from tests.helpers.calls import call

LOCAL = {"allow_private": ["127.0.0.1"], "ports": None, "max_attempts": 1}


def test_the_arguments_of_a_function_call():
    tool = BrowseTool()
    assert tool.schema()["required"] == ["url"]
    assert tool.text_argument({"url": "http://a.org"}) == "http://a.org\n"
    assert tool.text_argument({"url": " http://a.org ", "query": "How old\nis he?"}) == "http://a.org\nHow old\nis he?"
    for wrong in ({}, {"query": "x"}, {"url": "x", "page": 1}, {"url": 3}, {"url": "x", "query": None}):
        with pytest.raises(ToolError, match="browse"):
            tool.text_argument(wrong)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("http://a.org", ("http://a.org", "")),
        (" http://a.org\n  How old is he?\n", ("http://a.org", "How old is he?")),
        ("http://a.org How old\nis he?", ("http://a.org", "How old\nis he?")),
        ('{"url": "http://a.org"}', ("http://a.org", "")),
        ('{"url": "http://a.org", "query": "How old?"}', ("http://a.org", "How old?")),
    ],
)
def test_the_argument_of_a_tag(argument, expected):
    assert BrowseTool()._split(argument.strip()) == expected


@pytest.mark.parametrize(
    "argument",
    ["", "{", "{" * 100_000, '{"url": 3}', '{"a": "http://a.org"}', "the page of Vienna", "http://xn--/", "http://[::1",
     "http://xn--a-ecp.ru/", "http://a:99999/", "http://a:0/", "http://%00/", "http://\u00ad/"],
)  # fmt: skip
def test_an_argument_without_a_possible_url_is_the_models_error(argument):
    assert call(BrowseTool(ports=None), argument).status == ToolStatus.ERROR


def test_pages_are_kept_by_their_url_and_failures_are_not(tmp_path):
    options = {**LOCAL, "cache_path": str(tmp_path / "pages.sqlite")}
    statuses, kind = [503, 200, 200], {"Content-Type": "text/plain; charset=utf-8"}

    def route(handler):
        web_server.reply(handler, f"{handler.path} \ud83d".encode("utf-8", "surrogatepass"), statuses.pop(0), kind)

    with web_server.serving("127.0.0.1", route) as server:
        host = f"http://127.0.0.1:{server.port}"
        failed, *results = [call(BrowseTool(**options), f"{host}{path}") for path in ("/a", "/a", "/a", "/b", "/a")]
        assert failed.status == ToolStatus.ERROR
        # Half an emoji is replaced.
        text = "URL: {0}{1}\n\n{1} \ufffd\ufffd\ufffd"
        assert [r.text for r in results] == [text.format(host, path) for path in ("/a", "/a", "/b", "/a")]
        assert server.paths == ["/a", "/a", "/b"]
        # What is kept is shown to nobody who may not open it.
        assert "not public" in call(BrowseTool(**{**options, "allow_private": False}), f"{host}/a").text


def test_the_browser_agent_is_given_the_page_and_the_question():
    def answer(request):
        if request.path == "/v1/chat/completions":
            return web_server.Reply(web_server.completion("<think>hm</think>\nIt costs 12."))
        page = b"<title>Lamps</title><p>The brass lamp costs 12."
        return web_server.Reply(page, headers={"Content-Type": "text/html"})

    with web_server.json_service(answer) as server:
        model = {"base_url": f"{server.url}/v1", "model": "reader"}
        url = f"{server.url}/lamps"
        result = call(BrowseTool(**LOCAL, summary_model=model), f"{url}\nWhat does the lamp cost?")
    assert result == ToolResult(f"Title: Lamps\nURL: {url}\n\nIt costs 12.")
    page = f"Page: Lamps ({url})\n<page>\nThe brass lamp costs 12.\n</page>"
    asked = server.requests[-1].body["messages"][-1]["content"]
    assert asked == f"Question: What does the lamp cost?\n\n{page}"


def test_https_checks_the_name_and_not_the_address(tmp_path, monkeypatch):
    certificate = self_signed(tmp_path, "shop.test")
    monkeypatch.setattr(fetch, "_ssl_context", lambda: ssl.create_default_context(cafile=certificate))
    hosts = []

    def route(handler):
        hosts.append(handler.headers["Host"])
        web_server.reply(handler, "<p>over TLS")

    async def resolve(host, port):
        return ["127.0.0.1"]

    monkeypatch.setattr(browse, "system_resolve", resolve)

    with web_server.serving("127.0.0.1", route) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        tool = BrowseTool(**LOCAL)
        assert call(tool, f"https://shop.test:{server.port}/").text.endswith("over TLS")
        assert "certificate" in call(tool, f"https://other.test:{server.port}/").text
    assert hosts == [f"shop.test:{server.port}"]


def self_signed(folder, name: str) -> str:
    """Path of a file with a key and its certificate for `name`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + certificate.public_bytes(encoding))
    return str(path)


def test_no_proxy_of_the_environment_is_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with web_server.serving("127.0.0.1", lambda handler: web_server.reply(handler, "<p>direct")) as server:
        assert call(BrowseTool(**LOCAL), f"http://127.0.0.1:{server.port}/").text.endswith("direct")
