"""Makes the pictures of the documentation: a recorded question's page, light and dark, in headless Chromium.

    python -m release.tree_screenshots RUN_OR_FILE --question ID --output docs

Of a question that was recorded several times it takes the last record. The first turn that was forked is unfolded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from rllib_arpo.record.read import Question
from rllib_arpo.show.pages import last_questions, write_pages

SCHEMES = ("light", "dark")
WIDTH, HEIGHT = 1640, 2150


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", metavar="RUN_OR_FILE")
    parser.add_argument("--question", metavar="ID", help="default: the recorded question with the most forks")
    parser.add_argument("--output", type=Path, default=Path("docs"), metavar="FOLDER")
    args = parser.parse_args(arguments)
    found = last_questions(args.record, args.question, 1 if args.question else 200)
    ((question,),) = [max(found, key=lambda group: group[0].num_forks())]
    with tempfile.TemporaryDirectory() as folder:
        (path,) = write_pages(Path(folder), args.record, [[question]])
        for picture in _take(path, question, args.output):
            print(picture)


def _take(path: Path, question: Question, output: Path) -> list[Path]:
    from playwright.sync_api import sync_playwright

    forked = next((turn for turn in question.turns() if turn["children"]), next(question.turns()))
    pictures = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), chromium_sandbox=os.geteuid() != 0
        )
        for scheme in SCHEMES:
            page = browser.new_page(color_scheme=scheme, viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(path.as_uri())
            page.evaluate(
                "(id) => { document.getElementById(id).open = true; }",
                f"a-turn-{forked['agent_id']}-{forked['turn']}",
            )
            pictures.append(output / f"tree-{scheme}.png")
            page.screenshot(path=pictures[-1], full_page=False)
        browser.close()
    return pictures


if __name__ == "__main__":
    main()
