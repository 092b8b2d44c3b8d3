"""Decodes a response's bytes: decompression that stops at a limit, and the character set of a page."""

from __future__ import annotations

import codecs
import contextlib
import re
import zlib
from collections.abc import Iterator

from rllib_arpo.envs.errors import ToolError

#: The fetcher does not ask for Brotli or Zstandard, since only zlib can stop in the middle of a block.
ACCEPTED_ENCODINGS = "gzip, deflate"

_GZIP_OR_ZLIB, _RAW_DEFLATE = 32 + zlib.MAX_WBITS, -zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"
#: Number of bytes at a page's beginning in which the page may state its character set.
_META_BYTES = 4096
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE)
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
#: Character sets that browsers use if a page names an older one (the WHATWG's encoding standard).
_READ_AS = {"ascii": "cp1252", "iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "utf-16": "utf-16-le"}


class Decoder:
    """Collects a body, decompressed as it arrives, and stops beyond `max_bytes`.

    Raises:
        ToolError: the encoding was not asked for; in `feed`: the body is too large or broken; in `finish`: cut off.
    """

    def __init__(self, content_encoding: str, max_bytes: int):
        name = content_encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ToolError(f"The page is encoded as {name!r}, which was not asked for.")
        self._inflate = None if name in ("", "identity") else zlib.decompressobj(_GZIP_OR_ZLIB)
        self._max_bytes, self._num_wire_bytes = max_bytes, 0
        self._body = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the response."""
        self._num_wire_bytes += len(chunk)
        for piece in self._pieces(chunk):
            self._body += piece
            if max(len(self._body), self._num_wire_bytes) > self._max_bytes:
                raise too_large(self._max_bytes)

    def finish(self) -> bytes:
        """The body, when all bytes were fed."""
        if self._inflate is not None and self._num_wire_bytes and not self._inflate.eof:
            raise ToolError("The compressed page is cut off.")
        return bytes(self._body)

    def _pieces(self, chunk: bytes) -> Iterator[bytes]:
        """The decompressed parts of `chunk`, several for several gzip members; none is longer than what is allowed."""
        if self._inflate is None:
            yield chunk
            return
        while chunk:
            if self._inflate.eof:
                if not chunk.startswith(_GZIP_MAGIC):
                    return  # Browsers also ignore bytes after the data.
                self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
            yield self._decompress(chunk)
            chunk = self._inflate.unused_data

    def _decompress(self, chunk: bytes) -> bytes:
        room = self._max_bytes + 1 - len(self._body)
        try:
            return self._inflate.decompress(chunk, room)
        except zlib.error as error:
            # Some servers send "deflate" without zlib's header; the first bytes show this.
            if self._num_wire_bytes == len(chunk) and not chunk.startswith(_GZIP_MAGIC):
                self._inflate = zlib.decompressobj(_RAW_DEFLATE)
                with contextlib.suppress(zlib.error):
                    return self._inflate.decompress(chunk, room)
            raise ToolError(f"The compressed page is broken ({error}).") from error


def too_large(max_bytes: int) -> ToolError:
    return ToolError(f"The page is larger than {max_bytes} bytes.")


def text_of(content: bytes, content_type: str) -> str:
    """A page's text, by its byte order mark, the server's header or its own statement, or as UTF-8 or Windows-1252."""
    for mark, charset in _BOMS:
        if content.startswith(mark):
            return content[len(mark) :].decode(charset, errors="replace")
    stated = re.search(r"charset\s*=\s*[\"']?([\w.:-]+)", content_type, re.IGNORECASE)
    meta = _META_CHARSET.search(content[:_META_BYTES])
    for name in (stated and stated[1], meta and meta[1].decode("ascii")):
        with contextlib.suppress(LookupError, UnicodeError):
            charset = codecs.lookup(name or "").name
            return content.decode(_READ_AS.get(charset, charset), errors="replace")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")
