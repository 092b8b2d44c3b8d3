"""The addresses to which the web tools may connect: the rule against server-side request forgery."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import httpx

from rllib_arpo.envs.errors import ToolError, TransientToolError
from rllib_arpo.envs.support.loop_thread import in_thread

Address = IPv4Address | IPv6Address

#: (host name, port) -> its addresses; raises `socket.gaierror`. It also resolves literal addresses in any spelling.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

#: Networks without public servers, by the special-purpose registries of IANA (RFC 6890 and its successors), and the
#: metadata address that one cloud (Azure) has in its public space.
_REFUSED_IPV4 = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
            *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32"),
        ),
    )
)
#: The only public space of IPv6, and its parts that are not public: protocol assignments (Teredo among them),
#: documentation, 6to4. Mapped, compatible, unique local, link-local, site-local and multicast addresses lie outside of
#: it.
_PUBLIC_IPV6 = IPv6Network("2000::/3")
_REFUSED_IPV6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
#: IPv4 addresses as an IPv6-only network writes them (RFC 6052); the rule holds for the address inside.
_NAT64 = IPv6Network("64:ff9b::/96")

_HOST = re.compile(r"[\w.-]+")
_DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_URL_CHARS = 4096
_PORTS = range(1, 1 << 16)


#: Seconds that the operating system may take to look a name up.
LOOK_UP_TIMEOUT_S = 10.0
#: Look-ups at a time. A look-up keeps its slot until the operating system gives up on the name server, even if no
#: caller waits for it any more.
_MAX_LOOK_UPS = 64
_SLOT_WAIT_S = 0.01
_slots = threading.BoundedSemaphore(_MAX_LOOK_UPS)


async def system_resolve(host: str, port: int) -> list[str]:
    """The addresses that the operating system knows for `host`, in its order of preference."""
    # Not in the event loop's own threads: names with silent servers would block them.
    try:
        async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
            while not _slots.acquire(blocking=False):
                await asyncio.sleep(_SLOT_WAIT_S)
            entries = await in_thread(_look_up, host, port)
    except TimeoutError as error:
        raise socket.gaierror(socket.EAI_AGAIN, f"no answer within {LOOK_UP_TIMEOUT_S:g} s") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _look_up(host: str, port: int) -> Sequence[Any]:
    """Asks the operating system, in a thread that holds one of `_slots`."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    finally:
        _slots.release()


@dataclass(frozen=True, kw_only=True)
class AddressRule:
    """Decides which URLs may be fetched, and to which addresses connections may go.

    Attributes:
        allow_private: True: any address; otherwise the hosts ("wiki.internal") and networks ("10.1.0.0/16",
            "127.0.0.1") that are allowed besides the public ones.
        ports: the allowed ports; None: all.
        resolve: how host names become addresses.
    """

    allow_private: bool | Sequence[str] = False
    ports: Sequence[int] | None = None
    resolve: Resolve = system_resolve

    def __post_init__(self) -> None:
        if isinstance(self.allow_private, str):
            raise ValueError(f"allow_private must be True, False or a list of hosts, not {self.allow_private!r}.")
        if self.allow_private is not True:
            _ = self._allowed

    def check_url(self, url: str | httpx.URL) -> httpx.URL:
        """The URL, parsed.

        Raises:
            ToolError: it is not an absolute http or https URL, has credentials, or names a port that is not allowed.
        """
        if len(str(url)) > MAX_URL_CHARS:
            raise ToolError(f"The URL is longer than {MAX_URL_CHARS} characters.")
        try:
            parsed = httpx.URL(url)
            # httpx decodes the host only now, and does not accept every one that it has parsed.
            host = parsed.host
        except (httpx.InvalidURL, ValueError) as error:
            raise ToolError(f"{url!r} is not a URL: {error}.") from error
        if parsed.scheme not in _DEFAULT_PORTS:
            raise ToolError(f"{url}: only addresses that begin with http:// or https:// can be opened.")
        if not host:
            raise ToolError(f"{url}: the URL names no host.")
        if parsed.userinfo:
            raise ToolError(f"{parsed.host}: a URL with a user name or a password is not opened.")
        if port_of(parsed) not in (_PORTS if self.ports is None else self.ports):
            raise ToolError(f"{url}: port {port_of(parsed)} is not allowed.")
        return parsed

    async def addresses(self, url: httpx.URL) -> list[str]:
        """The addresses of the URL's host, all of them allowed: connect to these, and resolve nothing again.

        Raises:
            ToolError: the host is unknown, or one of its addresses is refused.
        """
        host = url.raw_host.decode("ascii").strip("[]")
        try:
            found = [ip_address(text) for text in await self.resolve(host, port_of(url))]
        except (OSError, UnicodeError, ValueError) as error:
            kind = TransientToolError if getattr(error, "errno", None) == socket.EAI_AGAIN else ToolError
            raise kind(f"{url.host}: the host is not known ({error}).") from error
        if not found:
            raise ToolError(f"{url.host}: the host has no address.")
        for address in found:
            if not self._allows(url.host, address):
                raise ToolError(f"{url.host}: the address {address} is not public, and is not opened.")
        return [str(address) for address in found]

    def _allows(self, host: str, address: Address) -> bool:
        if self.allow_private is True:
            return True
        hosts, networks = self._allowed
        if host.rstrip(".").lower() in hosts or any(address in network for network in networks):
            return True
        return is_public(address) and not is_own(address)

    @cached_property
    def _allowed(self) -> tuple[set[str], list[IPv4Network | IPv6Network]]:
        """The host names and the networks of `allow_private`."""
        hosts: set[str] = set()
        networks: list[IPv4Network | IPv6Network] = []
        allowed = () if isinstance(self.allow_private, bool) else self.allow_private
        for entry in allowed:
            try:
                networks.append(ip_network(entry, strict=False))
            except ValueError as error:
                if not _HOST.fullmatch(entry):
                    raise ValueError(f"allow_private: {entry!r} is neither a host name nor a network.") from error
                hosts.add(entry.rstrip(".").lower())
        return hosts, networks


def is_public(address: Address) -> bool:
    """Whether `address` can belong to a server of the public internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _REFUSED_IPV4)
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _PUBLIC_IPV6 and not any(address in network for network in _REFUSED_IPV6)


def is_own(address: Address) -> bool:
    """Whether `address` is one of this machine's, which may have a public one. Sends nothing."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # A connected datagram socket takes the source address that the route has: for own addresses, the same one.
            probe.connect((str(address), 9))
            return ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False


def port_of(url: httpx.URL) -> int:
    return _DEFAULT_PORTS[url.scheme] if url.port is None else url.port
