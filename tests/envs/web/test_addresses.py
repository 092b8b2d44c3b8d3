import asyncio
import socket
import threading
import time
from ipaddress import ip_address

import httpx
import pytest

from rllib_arpo.envs.errors import ToolError, TransientToolError
from rllib_arpo.envs.web.addresses import AddressRule, is_own, is_public, system_resolve

PRIVATE = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "169.254.169.254",
    "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1", "198.18.0.1", "224.0.0.251", "239.1.1.1",
    "240.0.0.1", "255.255.255.255", "168.63.129.16", "192.0.2.1", "192.88.99.1", "::", "::1",
    "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8", "64:ff9b::10.0.0.1", "64:ff9b:1::808:808",
    "2002:7f00:1::", "2001:0:1:2::", "2001:db8::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0",
    "fec0::1", "ff02::1", "100::1", "5f00::1", "3fff::1",
]  # fmt: skip
PUBLIC = [
    "8.8.8.8", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.255.255", "100.128.0.1", "223.255.255.254",
    "2606:4700:4700::1111", "2a00:1450:4001::1", "64:ff9b::808:808",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE + PUBLIC)
def test_which_addresses_a_public_server_may_have(address):
    assert is_public(ip_address(address)) == (address in PUBLIC)


def test_the_machines_own_addresses_are_known():
    assert is_own(ip_address("127.0.0.1"))
    assert is_own(ip_address("::1")) or not socket.has_ipv6
    assert not is_own(ip_address("192.0.2.1"))


def answers(*addresses: str):
    async def resolve(host, port):
        return addresses

    return resolve


def addresses(rule: AddressRule, url: str) -> list[str]:
    return asyncio.run(rule.addresses(rule.check_url(url)))


def test_hosts_and_networks_can_be_allowed():
    rule = AddressRule(allow_private=["Wiki.internal", "10.1.0.0/16", "::1"], resolve=answers("10.2.0.1"))
    assert addresses(rule, "http://wiki.INTERNAL./") == ["10.2.0.1"]
    with pytest.raises(ToolError, match=r"other.internal: the address 10.2.0.1 is not public, and is not opened"):
        addresses(rule, "http://other.internal/")
    allowed = AddressRule(allow_private=["10.1.0.0/16"], resolve=answers("10.1.255.1", "8.8.8.8"))
    assert addresses(allowed, "http://other.internal/") == ["10.1.255.1", "8.8.8.8"]


def test_a_name_server_that_fails_for_now_is_asked_again():
    def failing(code):
        async def resolve(host, port):
            raise socket.gaierror(code, "words")

        return AddressRule(resolve=resolve)

    with pytest.raises(TransientToolError, match=r"example.com: the host is not known"):
        addresses(failing(socket.EAI_AGAIN), "http://example.com/")
    with pytest.raises(ToolError) as error:
        addresses(failing(socket.EAI_NONAME), "http://example.com/")
    assert type(error.value) is ToolError


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", ": only addresses that begin with http:// or https:// can be opened."),
        ("http://", "http://: the URL names no host."),
        ("http://user@example.com/", "example.com: a URL with a user name or a password is not opened."),
        ("http://example.com:22/", "http://example.com:22/: port 22 is not allowed."),
        ("https://example.com:80/", None),
        ("http://example.com/" + "a" * 5000, "The URL is longer than 4096 characters."),
        ("http://[::1/", "'http://[::1/' is not a URL: Invalid port: ':1'."),
        ("http://example.com:99999/", "http://example.com:99999/: port 99999 is not allowed."),
    ],
)
def test_check_url(url, message):
    rule = AddressRule(ports=(80, 443))
    if message is None:
        assert rule.check_url(url) == httpx.URL(url)
        return
    with pytest.raises(ToolError) as error:
        rule.check_url(url)
    assert str(error.value) == message


@pytest.fixture
def silent_names(monkeypatch):
    """Looking up *.silent takes until the end of the test; at most 40 names are looked up at a time."""
    end, threads = threading.Event(), []
    known = socket.getaddrinfo

    def look_up(host, *args, **kwargs):
        threads.append(threading.current_thread())
        if host.endswith(".silent"):
            end.wait(10)
        return known("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr("rllib_arpo.envs.web.addresses._slots", threading.BoundedSemaphore(40))
    yield threads
    end.set()
    for thread in threads:
        thread.join()


async def test_silent_name_servers_keep_nothing_else_waiting(monkeypatch, silent_names):
    monkeypatch.setattr("rllib_arpo.envs.web.addresses.LOOK_UP_TIMEOUT_S", 1.0)
    rule = AddressRule()

    async def ask(host: str):
        with pytest.raises(TransientToolError, match=f"{host}: the host is not known .*no answer within 1 s"):
            await rule.addresses(httpx.URL(f"http://{host}/"))

    asking = asyncio.gather(*(ask(f"{number}.silent") for number in range(50)))
    await asyncio.sleep(0.1)
    assert len(silent_names) == 40
    async with asyncio.timeout(0.5):
        await asyncio.to_thread(time.sleep, 0)
    await asking
    assert all(thread.daemon for thread in silent_names)


async def test_look_ups_that_are_given_up_make_room(silent_names):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await system_resolve("a.silent", 80)
    found = await asyncio.gather(*(system_resolve("localhost", 80) for _ in range(100)))
    assert found == [["127.0.0.1"]] * 100
