"""Compares a text with its approved file, or with ACCEPT=1 in the environment writes the file anew, to be read."""

import os
from pathlib import Path


def assert_approved(file: Path, text: str) -> None:
    """`ACCEPT=1 pytest THE_TEST` makes the file anew: read what `git diff` shows of it."""
    if "ACCEPT" in os.environ:
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
