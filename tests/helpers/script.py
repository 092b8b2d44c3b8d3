"""`python SCRIPT ...` as a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path


def command(script: Path, *arguments: str) -> list[str]:
    """What to start for `python SCRIPT ...`; needs this project's folder in PYTHONPATH."""
    return [sys.executable, str(script), *arguments]
