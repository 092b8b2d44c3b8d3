"""Links of the documentation and of docstrings lead somewhere; no page repeats another."""

import re
import subprocess
from collections import defaultdict

import pytest

from tests.docs.pages import PAGES, README, REPOSITORY, headings, links, name_of, sentences

#: A docstring's reference to a page, and to a section of it.
_REFERENCE = re.compile(r'(docs/[\w/]+\.md)(?:,\s+(?:#\s+)?"([^"]+)")?')
#: A sentence of so many words is not written twice by chance.
MIN_WORDS = 12


def slug(heading: str) -> str:
    """A heading's anchor on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings_that_are_there(page):
    dead = []
    for link in links(page):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in map(slug, headings(target))):
            dead.append(link)
    assert dead == []


def test_docstrings_name_pages_and_sections_that_are_there():
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    files = [REPOSITORY / name for name in listed.stdout.splitlines()]
    found = [(file, *match) for file in files for match in _REFERENCE.findall(file.read_text())]
    assert len(found) > 20
    assert [
        f"{name_of(file)}: {page} {section}"
        for file, page, section in found
        if not (REPOSITORY / page).is_file() or (section and section not in headings(REPOSITORY / page))
    ] == []


def test_no_page_repeats_a_sentence_of_another():
    pages_of = defaultdict(set)
    for page in PAGES:
        for sentence in sentences(page):
            if len(sentence.split()) >= MIN_WORDS:
                pages_of[" ".join(sentence.split())].add(name_of(page))
    assert len(pages_of) > 300
    assert {sentence: pages for sentence, pages in pages_of.items() if len(pages) > 1} == {}


def test_the_readme_lists_every_page():
    listed = {(REPOSITORY / link.partition("#")[0]).resolve() for link in links(README)}
    assert {page for page in PAGES if page.parent == REPOSITORY / "docs"} - listed == set()
