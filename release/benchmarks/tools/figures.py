"""Turns what a tool's module measures into figures of the benchmark command."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from release.benchmarks.common.bench import Bench


def figures(bench: Bench, module: str, keys: Sequence[str]) -> dict[str, Any]:
    """`keys` of what `measure(quick)` of a module of this package returns, and a detail of each with the rest."""
    found = importlib.import_module(f"release.benchmarks.tools.{module}").measure(bench.size != "full")
    others = {name: round(value, 4) for name, value in found.items() if name not in keys}
    results: dict[str, Any] = {key: found[key] for key in keys}
    for i, key in enumerate(keys):
        # The table shows the rest once.
        results[f"{key}_detail"] = {"sides": [] if i else list(others), **others}
    return results
