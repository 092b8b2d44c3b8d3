"""The ledger of `tools.py` as a world of another Python."""

from __future__ import annotations

from typing import Any


class Ledger:
    def reset(self, row: dict[str, Any]) -> None:
        self.lines = [f"line {number}" for number in range(1000)]

    def act(self, said: str) -> str:
        self.lines.append(said)
        return said
