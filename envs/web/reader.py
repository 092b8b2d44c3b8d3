"""The code of the processes that read pages (for `readable`): each page in a process that can be ended.

A page may keep its parser or the decoder of its character set busy for minutes. The module stands alone, since
importing this package would be slow.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import json
import logging
import re

#: Length from which documents get the quick extraction; the careful one takes several times as long.
MAX_CAREFUL_CHARS = 1_000_000
#: Longer texts are cut: no tool shows as much, and the output of a process is limited.
MAX_TEXT_CHARS, MAX_TITLE_CHARS = 200_000, 1000
#: Number of bytes at a page's beginning in which the page may state its character set.
_META_BYTES = 4096
_META_CHARSET = re.compile(
    rb"<(?:meta[^>]{0,200}?charset|\?xml[^>]{0,200}?encoding)\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE
)
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
#: The character sets of the WHATWG's encoding standard, as Python calls them; others count as unknown, such as
#: punycode, which takes quadratic time.
_KNOWN = frozenset({
    "utf-8", "cp866", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "cp874", "gbk", "gb2312", "gb18030", "big5",
    "big5hkscs", "cp950", "euc_jp", "iso2022_jp", "shift_jis", "cp932", "euc_kr", "cp949", "utf-16", "utf-16-be",
    "utf-16-le", "ascii", "tis-620", *(f"cp125{i}" for i in range(9)), *(f"iso8859-{i}" for i in range(1, 17)),
})  # fmt: skip
#: Character sets that browsers use if a page names an older one (the WHATWG's encoding standard).
_READ_AS = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "utf-16": "utf-16-le",
    "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs",
}  # fmt: skip
#: Names of that standard that Python does not know.
_NAMES = {
    "x-sjis": "cp932", "windows-31j": "cp932", "x-euc-jp": "euc_jp", "x-gbk": "gb18030", "windows-949": "cp949",
    "x-x-big5": "big5hkscs", "iso-8859-8-i": "iso8859-8", "x-cp1251": "cp1251", "x-cp1252": "cp1252",
}  # fmt: skip


def warm_up() -> None:
    """Does in advance the slow work of the first page."""
    logging.disable()
    page = base64.b64encode(b"<title>a</title><article><p>b <a href='c'>d</a></p></article>").decode()
    read_page(page, "text/html", True)


def answer(request: str) -> None:
    """Prints the result of `read_page` as a line of JSON; `request` has its arguments as JSON."""
    print(json.dumps(read_page(**json.loads(request)), ensure_ascii=False))


def read_page(content: str, content_type: str, html: bool) -> dict[str, str] | None:
    """{"title", "text"} of a page: of HTML its main text, or all its text if no main text is found.

    Args:
        content: the page's bytes in base64.
        html: whether it is HTML rather than plain text.

    Returns:
        None if the page is not text, whatever its type says.
    """
    text = text_of(base64.b64decode(content), content_type)
    if "\0" in text:
        return None
    title, text = _read_html(text) if html else ("", text)
    return {"title": title[:MAX_TITLE_CHARS], "text": text.strip()[:MAX_TEXT_CHARS]}


def text_of(content: bytes, content_type: str) -> str:
    """A page's text, by its byte order mark, the server's header or its own statement, or as UTF-8 or Windows-1252."""
    for mark, charset in _BOMS:
        if content.startswith(mark):
            return content[len(mark) :].decode(charset, errors="replace")
    stated = re.search(r"charset\s*=\s*[\"']?([\w.:-]+)", content_type, re.IGNORECASE)
    meta = _META_CHARSET.search(content[:_META_BYTES])
    # A statement that can be read byte by byte is not in UTF-16, whatever it says.
    own = meta and re.sub(r"(?i)^utf-?16.*", "utf-8", meta[1].decode("ascii"))
    for name in (stated and stated[1], own):
        with contextlib.suppress(LookupError, UnicodeError):
            charset = codecs.lookup(_NAMES.get((name or "").lower(), name or "")).name
            if charset not in _KNOWN:
                continue
            return content.decode(_READ_AS.get(charset, charset), errors="replace")
    with contextlib.suppress(UnicodeDecodeError):
        return content.decode("utf-8")
    text = content.decode("utf-8", errors="replace")
    damaged = text.count("\N{REPLACEMENT CHARACTER}")
    in_utf8 = sum(character > "\x7f" for character in text) >= 2 * damaged
    return text if in_utf8 else content.decode("cp1252", errors="replace")


def _read_html(html: str) -> tuple[str, str]:
    """(title, text)."""
    import lxml.etree
    import lxml.html
    import trafilatura

    try:
        parser = lxml.html.HTMLParser(encoding="utf-8")
        tree = lxml.html.document_fromstring(html.encode("utf-8", errors="replace"), parser=parser)
    except lxml.etree.ParserError:
        return "", ""  # The document has no element.
    title = " ".join((tree.findtext(".//title") or "").split())
    careful = len(html) <= MAX_CAREFUL_CHARS
    text = trafilatura.extract(tree, include_comments=False, favor_recall=True) if careful else None
    return title, text or trafilatura.html2txt(tree)
