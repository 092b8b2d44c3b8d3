"""The pages of the documentation: their headings, links and fenced snippets."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
PAGES = [
    README,
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "release" / "benchmarks" / "README.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
]


@dataclass(frozen=True, slots=True)
class Snippet:
    """The text of a fence; its first line is number `line` of the page, counted from 1."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name in a first line "# NAME.py": the snippet is the content of this file."""
        name = re.match(r"# (\w+\.py)\n", self.text)
        return name and name[1]

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def snippets(page: Path, language: str | None = None) -> list[Snippet]:
    """The page's fences, in their order; None: of all languages."""
    fences = [token for token in _tokens(page.read_text()) if token.type == "fence"]
    found = [Snippet(page, token.map[0] + 2, token.info.strip(), token.content) for token in fences]
    return [snippet for snippet in found if language in (None, snippet.language)]


def links(page: Path) -> list[str]:
    """Where the page's links lead, and where its pictures lie."""
    inline = [child for token in _tokens(page.read_text()) for child in token.children or ()]
    return [str(child.attrs[name]) for child in inline for name in ("href", "src") if name in child.attrs]


def headings(page: Path) -> list[str]:
    """The page's headings."""
    tokens = _tokens(page.read_text())
    return [_plain(following) for token, following in itertools.pairwise(tokens) if _opens_heading(token)]


def sentences(page: Path) -> Iterator[str]:
    """The sentences of the page's paragraphs, without markup."""
    tokens = _tokens(page.read_text())
    for before, token in itertools.pairwise(tokens):
        if before.type == "paragraph_open":
            yield from re.split(r"(?<=[.:;!?]) ", _plain(token))


def _tokens(text: str) -> list[Token]:
    return MarkdownIt().enable("table").parse(text)


def _opens_heading(token: Token) -> bool:
    return token.type == "heading_open"


def _plain(token: Token) -> str:
    shown = ("text", "code_inline", "softbreak")
    return "".join(child.content or " " for child in token.children or () if child.type in shown)
