"""JSON that a model wrote: of bounded depth, valid Unicode, and again JSON when it is written."""

from __future__ import annotations

import json
from typing import Any

#: Serialisers and validators walk over a value recursively; deeper ones are refused so that they do not fail.
MAX_DEPTH = 32


def parse_model_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, is nested more than `MAX_DEPTH` deep, has a number that JSON does not have (NaN), or
            spells half of a character ("\\ud83d").
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep") from error
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, dict | list):
            if depth > MAX_DEPTH:
                raise ValueError("the JSON is nested too deep")
            waiting += [(inner, depth + 1) for inner in (item.values() if isinstance(item, dict) else item)]
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value
