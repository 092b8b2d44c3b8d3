"""Hides secrets in settings, arguments and addresses before the package shows them or stores them with a run."""

import ast
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

HIDDEN = "***"
_NAMES = r"(?:{}|(?<![a-z])(?:sig|pass|pat|pw|pin|sas|otp|jwt|dsn|cred))s?".format(
    "key|token|password|passwd|pwd|passphrase|secret|credential|auth|oauth2|authorization|cookie|header|signature"
    "|bearer|webhook|webhook_url|session_?id|access_key_id|conn(?:ection)?_str(?:ing)?"
)
#: A name with such an end hides its value: "api_key", "--hf-token", "DB_PASSWORD", "headers".
_SECRET = re.compile(f"{_NAMES}$", re.I)
#: Such a name, of what a child process gets, hides all values within it.
_CONTAINERS = "env(?:iron(?:ment)?)?(?:_?var(?:iable)?)?s?|arg(?:s|v)?"
_CONTAINER = re.compile(rf"(^|[_-])(?:{_CONTAINERS})$", re.I)
#: The user's name and password in an address; a password may contain "@", "?" or "#".
_USER = re.compile(r"""(?<=://)[^\s/"']*@""")
#: A secret's name with its value in a text: "?sig=a", "api_key: 'a'", "Authorization: Bearer a", "headers={...".
_NAMED = re.compile(
    rf"""(?<![\w.-])(?P<name>[\w.-]*{_NAMES})(?P<sign>["']?\s*[:=]\s*(?P<quote>["'])?)"""
    r"""(?P<value>(?(quote)(?:\\.|(?!(?P=quote)).)*|(?:[{\[(].*|(?:(?:basic|bearer|token)\s+)?[^\s&#,;"'}\])]+)))""",
    re.I,
)
#: In a text: "env={..." (which hides the rest of its line), "Authorization: Digest a", "--token a".
_CONTAINED = re.compile(rf"""(?<![\w.-])((?:[\w-]*[_-])?(?:{_CONTAINERS})["']?\s*[:=]\s*)[{{\[(].*""", re.I)
_HEADER = re.compile(r"""(authorization["']?\s*[:=]\s*["']?)[^"'\n}\])]+""", re.I)
_OPTION = re.compile(rf"(?<!\S)(--?[\w-]*{_NAMES})(\s+)(?![-*'])(\S+)", re.I)
#: Secrets that need no name: tokens of well-known services, signed claims, private keys, OAuth codes.
_KNOWN = re.compile(
    r"\b(?:sk-|hf_|gh[opsur]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|AIza)[\w-]{16,}|\beyJ[\w-]+\.[\w-]+\.[\w-]*"
    r"|(?<=-----BEGIN )[^-]*PRIVATE KEY-----[^-]*|(?i:(?<=\bbearer )[^\s\"',;}\])]+|(?<=[?&]code=)[^\s&#]+)"
)
_NUMBER = re.compile(r"-?[\d.]+")


def without_secrets(value: Any, name: str = "") -> Any:
    """`value` (of JSON's types, or JSON as text) without possible secrets; names and structure stay.

    It hides values whose names end like a secret's, all values in `env` and `args`, user names and passwords in
    addresses, and tokens of well-known services. In other texts it hides the words after a secret's name and "=" or
    ":", and after such an option. A number with a plural name ("max_tokens") stays.
    """
    if isinstance(value, Mapping):
        hides = _SECRET.search(name) or _CONTAINER.search(name)
        return {key: without_secrets(each, "secret" if hides else str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(each, "secret" if _CONTAINER.search(name) else name) for each in value]
    if value is None or isinstance(value, bool):
        return value
    if _SECRET.search(name) and not (name.endswith("s") and _NUMBER.fullmatch(str(value))):
        return HIDDEN
    return _text_without_secrets(value) if isinstance(value, str) else value


def comparable(value: Any, name: str = "") -> Any:
    """`without_secrets` for comparisons: a hidden value gets 16 bits of its hash, such as "*** 1a2b".

    A comparison then misses one change in 65,536, and a reader learns only these bits of a secret.
    """
    return _marked(without_secrets(value, name), value)


def _marked(public: Any, value: Any) -> Any:
    if isinstance(public, Mapping):
        return {key: _marked(each, value[key]) for key, each in public.items()}
    if isinstance(public, list):
        return [_marked(*pair) for pair in zip(public, value, strict=True)]
    return public if public == value else f"{public} {hashlib.sha256(repr(value).encode()).hexdigest()[:4]}"


def command_without_secrets(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command line without the values of options, or of NAME=VALUE, with a secret's name."""
    words, option = [], ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument.startswith("-"):
            words.append(f"{name}={without_secrets(value, name)}" if equals else argument)
            option = "" if equals else name
        elif equals and re.fullmatch(r"[\w-]+", name) and not _SECRET.search(option):
            words.append(f"{name}={without_secrets(value, 'secret' if _CONTAINER.search(option) else name)}")
        else:
            words.append(without_secrets(argument, option))
            if words[-1] != HIDDEN or not option.endswith("s"):  # A plural may have several values.
                option = ""
    return words


def _text_without_secrets(text: str) -> str:
    if text.lstrip().startswith(("{", "[")):
        for read, written in ((json.loads, json.dumps), (ast.literal_eval, repr)):
            with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                return written(without_secrets(read(text)))
    text = _KNOWN.sub(HIDDEN, _USER.sub(f"{HIDDEN}@", text))
    text = _CONTAINED.sub(rf"\1{HIDDEN}", _HEADER.sub(rf"\1{HIDDEN}", text))
    text = _OPTION.sub(lambda found: f"{found[1]}{found[2]}{without_secrets(found[3], found[1])}", text)
    return _NAMED.sub(
        lambda found: f"{found['name']}{found['sign']}{without_secrets(found['value'], found['name'])}", text
    )
