"""The pages in headless Chromium: no error, no request, accessible, usable by keyboard."""

from pathlib import Path

import pytest

from rllib_arpo.commands import main

pytestmark = pytest.mark.slow


@pytest.fixture
def open_page(browser):
    """Opens a file in a page of its own; in the end, there was no error and no request but for the file itself."""
    contexts, faults = [], []

    def run(path: Path, scheme: str = "light"):
        context = browser.new_context(color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: request.url == path.as_uri() or faults.append(request.url))
        page.goto(path.as_uri())
        return page

    yield run
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture(scope="module")
def pages(record, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    assert main(["show", str(record), "--output", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index.html", "training-00001-lamps.html"])
def test_axe_finds_nothing_serious(open_page, pages, name, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_page(pages / name, scheme)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    violations = axe.Axe().run(page).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"]) for v in violations if v["impact"] in ("serious", "critical")] == []


def focused(page) -> str:
    return page.evaluate("document.activeElement.id || document.activeElement.parentElement.id")


def test_the_tree_is_used_by_keyboard(open_page, pages):
    page = open_page(pages / "training-00001-lamps.html")
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(focused(page))
    assert "unfold" in reached and "node-0-0" in reached
    page.focus("#node-0-0")
    steps = []
    for key in ("Tab", "Enter", "Escape"):
        page.keyboard.press(key)
        steps.append(focused(page))
    assert steps == ["node-0-1", "turn-0-1", "node-0-1"]
    assert page.evaluate("document.getElementById('turn-0-1').open")


def test_the_buttons(open_page, pages):
    page = open_page(pages / "training-00001-lamps.html")
    opened = "[...document.querySelectorAll('details')].filter((part) => part.open).length"
    background = "getComputedStyle(document.body).backgroundColor"
    found = [page.evaluate(background)]
    for button in ("unfold", "fold", "theme"):
        page.click(f"#{button}")
        found.append(page.evaluate(background if button == "theme" else opened))
    assert found == ["rgb(255, 255, 255)", 5, 0, "rgb(21, 24, 28)"]


def test_the_index_filters_and_sorts(open_page, pages):
    page = open_page(pages / "index.html")
    column = "[...document.querySelectorAll('tbody tr')].map((row) => row.cells[1].textContent.split(/[ ,]/)[0])"
    orders = [["training"] * 2 + ["evaluation"] * 4, ["evaluation"] * 4 + ["training"] * 2]
    assert page.evaluate(column) == orders[0]
    for order in (orders[1], orders[0]):
        page.click("th:nth-child(2) button")
        assert page.evaluate(column) == order
    shown = "document.getElementById('shown').textContent"
    assert page.evaluate(shown) == "6 of 6 questions"
    page.select_option("select[name=purpose]", "training")
    assert page.evaluate(shown) == "2 of 6 questions"
    page.fill("input[name=name]", "cups")
    assert page.evaluate(shown) == "1 of 6 questions"
    page.fill("input[name=most]", "-1")
    assert page.evaluate(shown) == "0 of 6 questions"
