"""The program of a reader process: one JSON request a line in, one JSON reply a line out (for `readers`).

It stands alone, since importing this package would be slow.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys

#: Length from which documents get the quick extraction; the careful one takes several times as long.
MAX_CAREFUL_CHARS = 1_000_000
_MEMORY_BYTES = 4 << 30
#: The byte with which the process reports that it is ready.
READY = b"+"


def read_page(html: str, url: str, links: bool) -> dict[str, str]:
    """{"title", "text"} of an HTML document: its main text, or all its text if no main text is found.

    Args:
        links: write links as Markdown, with their absolute addresses.
    """
    import lxml.etree
    import lxml.html
    import trafilatura

    try:
        parser = lxml.html.HTMLParser(encoding="utf-8")
        tree = lxml.html.document_fromstring(html.encode("utf-8", errors="replace"), parser=parser)
    except lxml.etree.ParserError:
        return {"title": "", "text": ""}  # The document has no element.
    title = " ".join((tree.findtext(".//title") or "").split())
    # The page is readable despite a wrong <base> or link.
    with contextlib.suppress(ValueError):
        tree.make_links_absolute(url, handle_failures="ignore")
    text = None
    if len(html) <= MAX_CAREFUL_CHARS:
        kind = "markdown" if links else "txt"
        text = trafilatura.extract(
            tree, url=url, output_format=kind, include_links=links, include_comments=False, favor_recall=True
        )
    return {"title": title, "text": (text or trafilatura.html2txt(tree)).strip()}


def may_fetch(robots_txt: str, url: str, user_agent: str) -> bool:
    """Whether the rules of a robots.txt allow fetching `url`."""
    from protego import Protego

    return Protego.parse(robots_txt).can_fetch(url, user_agent)


TASKS = {"read_page": read_page, "may_fetch": may_fetch}


def main() -> None:
    import protego  # noqa: F401
    import trafilatura  # noqa: F401

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        task, arguments = json.loads(line)
        reply = TASKS[task](**arguments)
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
