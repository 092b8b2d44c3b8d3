"""`python script.py SCRIPT ...` runs a script; its Ray has the warm workers of the process that started it."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from tests.helpers import warm_workers


def command(script: Path, *arguments: str) -> list[str]:
    """What to start for `python SCRIPT ...`; needs this project's folder in PYTHONPATH."""
    warm_workers.start()
    return [sys.executable, "-P", __file__, str(script), *arguments]


if __name__ == "__main__":
    warm_workers.use()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
