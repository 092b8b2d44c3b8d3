"""Reads numbers of a nested result of RLlib."""

import math
from collections.abc import Mapping
from typing import Any


def number_at(result: Mapping[str, Any], *path: str) -> float | None:
    """The number at a place of a nested result; None if there is none, or it is NaN.

    Args:
        path: keys; "a/b" stands for "a", "b".
    """
    value: Any = result
    for key in "/".join(path).split("/"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None or math.isnan(value) else float(value)
