"""The benchmarks' modules, imported by their own names and forgotten after the test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "release" / "benchmarks"


@pytest.fixture
def load_benchmark(monkeypatch) -> Iterator[Callable[[str], ModuleType]]:
    """`load_benchmark(name)` -> the module of that name in release/benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]
