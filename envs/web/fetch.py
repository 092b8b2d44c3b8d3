"""Fetches URLs over connections that only go to allowed addresses, within limits of size and redirects."""

from __future__ import annotations

import functools
import ssl
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx

from rllib_arpo.envs.errors import ToolError, TransientToolError, is_transient
from rllib_arpo.envs.support.loop_thread import LoopThread, loop_thread
from rllib_arpo.envs.web.addresses import AddressRule

#: Seconds to connect, and between two pieces of a response. The whole fetch is bounded by the tool's `timeout_s`.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 20.0
#: The only encoding that is asked for and accepted: of the usual ones, only zlib's can stop in the middle of a block.
_ENCODING, _GZIP = "gzip", 16 + zlib.MAX_WBITS
#: Pieces of a response, each of which costs as much work as kilobytes do.
_MAX_PIECES = 20_000
#: The largest number of addresses of one host that are tried.
_MAX_ADDRESSES = 3

#: A check before every request, redirects included; it raises a `ToolError` to refuse the request.
BeforeRequest = Callable[[httpx.URL], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A response: `url` after redirects, header names in lower case, `content` decompressed."""

    url: str
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    content: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")

    def raise_for_status(self) -> None:
        """Raises a `ToolError` unless the status is 2xx; a transient one if the status may change soon."""
        if 200 <= self.status < 300:
            return
        kind = TransientToolError if is_transient(self.status) else ToolError
        raise kind(f"{self.url}: the server answered {self.status} {self.reason}".rstrip() + ".")


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchSettings:
    """The addresses that may be opened, the client's name, and the limits of each response."""

    rule: AddressRule
    user_agent: str
    max_bytes: int
    max_redirects: int


def web_thread() -> LoopThread:
    """The event loop in which this process opens pages."""
    return loop_thread("web")


class Fetcher:
    """An HTTP client for one page: keeps cookies between its requests, but no connections.

    It takes no proxy and no credentials from the process's environment.
    """

    def __init__(self, settings: FetchSettings):
        self.settings = settings
        headers = {"User-Agent": settings.user_agent, "Accept": "*/*", "Accept-Encoding": _ENCODING}
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        transport = GuardedTransport(settings.rule)
        self._client = httpx.AsyncClient(transport=transport, headers=headers, timeout=timeout, trust_env=False)

    async def __aenter__(self) -> Fetcher:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        before_request: BeforeRequest | None = None,
    ) -> Fetched:
        """One request and the redirects that it leads to.

        Raises:
            ToolError: the URL or an address is refused, the response is too large or broken, too many redirects.
            TransientToolError: no connection, or it was lost.
        """
        try:
            request = self._client.build_request(method, url, headers=headers, content=content)
            return await self._follow(request, before_request)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
            raise ToolError(f"{url} is not a URL that can be opened: {error}.") from error
        except zlib.error as error:
            raise ToolError(f"The compressed page is broken ({error}).") from error
        except httpx.TimeoutException as error:
            raise TransientToolError(f"{url}: the server did not answer in time.") from error
        except httpx.TransportError as error:
            raise TransientToolError(f"{url}: the connection failed ({error or type(error).__name__}).") from error

    async def _follow(self, request: httpx.Request, before_request: BeforeRequest | None) -> Fetched:
        for _ in range(self.settings.max_redirects + 1):
            if before_request is not None:
                await before_request(request.url)
            response = await self._client.send(request, stream=True)
            try:
                if response.next_request is None:
                    return await self._read(response)
                request = response.next_request
            finally:
                await response.aclose()
        raise ToolError(f"{request.url}: more than {self.settings.max_redirects} redirects.")

    async def _read(self, response: httpx.Response) -> Fetched:
        """The response with its body, which may have `max_bytes` on the wire and as many decompressed."""
        max_bytes = self.settings.max_bytes
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity", _ENCODING):
            raise ToolError(f"The page is encoded as {encoding!r}, which was not asked for.")
        if int(response.headers.get("content-length", 0)) > max_bytes:
            raise self._too_large()
        inflate = zlib.decompressobj(_GZIP) if encoding == _ENCODING else None
        body = bytearray()
        pieces = 0
        async for chunk in response.aiter_raw():
            pieces += 1
            if pieces > _MAX_PIECES:
                raise ToolError(f"The page comes in more than {_MAX_PIECES} pieces.")
            body += chunk if inflate is None else inflate.decompress(chunk, max_bytes + 1 - len(body))
            if max(len(body), response.num_bytes_downloaded) > max_bytes:
                raise self._too_large()
        if inflate is not None and not inflate.eof and response.num_bytes_downloaded:
            raise ToolError("The compressed page is cut off.")
        return Fetched(
            str(response.url),
            response.status_code,
            response.reason_phrase,
            tuple((key.lower(), value) for key, value in response.headers.multi_items()),
            bytes(body),
        )

    def _too_large(self) -> ToolError:
        return ToolError(f"The page is larger than {self.settings.max_bytes} bytes.")


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
