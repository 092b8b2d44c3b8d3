"""Fetches a page over connections that only go to allowed addresses, within limits of size and redirects."""

from __future__ import annotations

import functools
import ssl
import zlib
from dataclasses import dataclass

import httpx

from rllib_arpo.envs.errors import ToolError, TransientToolError, is_transient
from rllib_arpo.envs.web.addresses import AddressRule

#: Seconds to connect, and between two pieces of a response. The whole fetch is bounded by the tool's `timeout_s`.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 20.0
#: The only encoding that is asked for and accepted: of the usual ones, only zlib's can stop in the middle of a block.
_ENCODING, _GZIP = "gzip", 16 + zlib.MAX_WBITS
USER_AGENT = "Mozilla/5.0 (compatible; rllib-arpo/0.1)"
#: The most redirects of a request, and bytes of a response, both on the wire and decompressed.
MAX_REDIRECTS, MAX_BYTES = 5, 5 << 20
#: The most pieces of a response: each costs as much work as kilobytes do.
_MAX_PIECES = 20_000
#: The largest number of addresses of one host that are tried.
_MAX_ADDRESSES = 3


@dataclass(frozen=True, slots=True)
class Fetched:
    """A page: `url` after redirects, `content_type` as its server says, `content` decompressed."""

    url: str
    content_type: str
    content: bytes


async def fetch(url: str, rule: AddressRule) -> Fetched:
    """The page to which a URL leads, perhaps by redirects, between which cookies are kept.

    Takes no proxy and no credentials from the process's environment. The limits hold for each response.

    Raises:
        ToolError: the URL or an address is refused, the status is an error, the response is too large or broken, there
            are too many redirects.
        TransientToolError: there is no connection, it was lost, or the server is busy.
    """
    headers = {"User-Agent": USER_AGENT, "Accept": "*/*", "Accept-Encoding": _ENCODING}
    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    transport = GuardedTransport(rule)
    try:
        async with httpx.AsyncClient(transport=transport, headers=headers, timeout=timeout, trust_env=False) as client:
            return await _follow(client, client.build_request("GET", url))
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
        raise ToolError(f"{url} is not a URL that can be opened: {error}.") from error
    except zlib.error as error:
        raise ToolError(f"The compressed page is broken ({error}).") from error
    except httpx.TimeoutException as error:
        raise TransientToolError(f"{url}: the server did not answer in time.") from error
    except httpx.TransportError as error:
        raise TransientToolError(f"{url}: the connection failed ({error or type(error).__name__}).") from error


async def _follow(client: httpx.AsyncClient, request: httpx.Request) -> Fetched:
    for _ in range(MAX_REDIRECTS + 1):
        response = await client.send(request, stream=True)
        try:
            if response.next_request is None:
                return await _read(response)
            request = response.next_request
        finally:
            await response.aclose()
    raise ToolError(f"{request.url}: more than {MAX_REDIRECTS} redirects.")


async def _read(response: httpx.Response) -> Fetched:
    """The response with its body, which may have `MAX_BYTES` on the wire and as many decompressed."""
    if not response.is_success:
        kind = TransientToolError if is_transient(response.status_code) else ToolError
        said = f"{response.status_code} {response.reason_phrase}".rstrip()
        raise kind(f"{response.url}: the server answered {said}.")
    too_large = ToolError(f"The page is larger than {MAX_BYTES} bytes.")
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", _ENCODING):
        raise ToolError(f"The page is encoded as {encoding!r}, which was not asked for.")
    if int(response.headers.get("content-length", 0)) > MAX_BYTES:
        raise too_large
    inflate = zlib.decompressobj(_GZIP) if encoding == _ENCODING else None
    body = bytearray()
    pieces = 0
    async for chunk in response.aiter_raw():
        pieces += 1
        if pieces > _MAX_PIECES:
            raise ToolError(f"The page comes in more than {_MAX_PIECES} pieces.")
        body += chunk if inflate is None else inflate.decompress(chunk, MAX_BYTES + 1 - len(body))
        if max(len(body), response.num_bytes_downloaded) > MAX_BYTES:
            raise too_large
    if inflate is not None and not inflate.eof and response.num_bytes_downloaded:
        raise ToolError("The compressed page is cut off.")
    return Fetched(str(response.url), response.headers.get("content-type", ""), bytes(body))


class GuardedTransport(httpx.AsyncBaseTransport):
    """Connects to addresses that the rule allows, and to no others.

    A host name is resolved once; the connection goes to the address that was checked. Host header, server name
    indication and certificate check keep the name. It keeps no connections: a request for another name at the same
    address could use a connection that was checked for the first name.
    """

    def __init__(self, rule: AddressRule):
        self._rule = rule
        limits = httpx.Limits(max_keepalive_connections=0)
        self._inner = httpx.AsyncHTTPTransport(verify=_ssl_context(), trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = self._rule.check_url(request.url)
        addresses = await self._rule.addresses(url)
        extensions = {**request.extensions, "sni_hostname": url.raw_host.decode("ascii")}
        error: httpx.TransportError | None = None
        for address in addresses[:_MAX_ADDRESSES]:
            direct = httpx.Request(
                request.method,
                url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions=extensions,
            )
            try:
                return await self._inner.handle_async_request(direct)
            except (httpx.ConnectError, httpx.ConnectTimeout) as failed:
                error = failed
        raise error or httpx.ConnectError("no address")

    async def aclose(self) -> None:
        await self._inner.aclose()


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()
