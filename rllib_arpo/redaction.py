"""One function decides what may be shown of a setting, an argument or an address, and be kept beside a run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "***"
#: Ends of names whose values are hidden: "api_key", "--hf-token", "DB_PASSWORD", "headers".
_SECRET = re.compile(
    r"(key|token|password|passwd|passphrase|secret|credential|auth|authorization|cookie|header|signature)s?$", re.I
)
#: Names that hide the values which they contain: what a child process gets.
_CONTAINER = re.compile(r"(^|[_-])(env|arg)s?$", re.I)
#: The user's name and password in an address; a careless password has "@", "?" or "#".
_USER = re.compile(r"""(?<=://)[^\s/"']*@""")
_PARAMETER = re.compile(r"""(?<=[?&])([\w.-]+)=[^\s&#"']+""")
_NUMBER = re.compile(r"-?[\d.]+")


def shown(value: Any, name: str = "") -> Any:
    """`value`, of JSON's types or JSON as text, without what may be a secret: names and shapes stay.

    Hidden are the values whose names end like that of a secret, all values in `env` and `args`, and the user
    information and keys in addresses. A number is shown if its name is plural ("max_tokens").
    """
    if isinstance(value, Mapping):
        return {key: shown(each, _inner(name) or str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [shown(each, _inner(name) or name) for each in value]
    if value is None or isinstance(value, bool):
        return value
    if _SECRET.search(name) and not (name.endswith("s") and _NUMBER.fullmatch(str(value))):
        return HIDDEN
    return _shown_text(value) if isinstance(value, str) else value


def shown_command(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command line, those hidden that belong to an option, or a NAME=VALUE, with a secret's name."""
    words, option = [], ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument.startswith("-"):
            words.append(f"{name}={shown(value, name)}" if equals else argument)
            option = "" if equals else name
        elif equals and re.fullmatch(r"[\w-]+", name) and not _SECRET.search(option):
            words.append(f"{name}={shown(value, name)}")
        else:
            words.append(shown(argument, option))
            if words[-1] != HIDDEN or not option.endswith("s"):  # A plural may have several values.
                option = ""
    return words


def _inner(name: str) -> str | None:
    """The name under which the values within a value are judged; None: their own."""
    if _SECRET.search(name):
        return name
    return "secret" if _CONTAINER.search(name) else None


def _shown_text(text: str) -> str:
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.dumps(shown(json.loads(text)))
        except (ValueError, RecursionError):
            pass
    text = _USER.sub(f"{HIDDEN}@", text)
    return _PARAMETER.sub(lambda found: f"{found[1]}={shown(found[0].partition('=')[2], found[1])}", text)
