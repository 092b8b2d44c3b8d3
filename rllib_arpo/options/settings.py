"""Declares the settings of a command: each field of a dataclass has its rule and its words, and its option follows."""

import argparse
import dataclasses
from typing import Any

from rllib_arpo.options.rules import Rule

#: Annotation of a rule, without None -> what reads such a value from a command line.
KINDS = {"int": int, "float": float, "str": str}


def setting(default: Any, rule: Rule, doc: str, *, repr: bool = True, **option: Any) -> Any:
    """A field of a dataclass of settings.

    Args:
        default: `MISSING`: there is none; a type such as `dict` makes a new value each time.
        rule: the rule for the value alone; its annotation says how the option is read.
        doc: its meaning, for the help.
        repr: as in `dataclasses.field`.
        option: more arguments of `ArgumentParser.add_argument`.
    """
    made = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return dataclasses.field(**made, repr=repr, metadata={"rule": rule, "doc": doc, "option": option})


def add_settings(parser: argparse.ArgumentParser, kind: type) -> None:
    """Adds an option for each declared setting of the dataclass `kind`; a switch is off by default."""
    for field in dataclasses.fields(kind):
        if not field.metadata:
            continue
        makes = field.default_factory
        default = field.default if makes is dataclasses.MISSING else makes()
        given = {} if default is dataclasses.MISSING else {"default": default}
        option = {"help": field.metadata["doc"], **given, **field.metadata["option"]}
        if default is False:
            option["action"] = "store_true"
        else:
            option.setdefault("type", KINDS.get(field.metadata["rule"].type.removesuffix(" | None"), str))
        parser.add_argument(f"--{field.name.replace('_', '-')}", **option)


def check_settings(settings: Any) -> None:
    """Raises a ValueError that names the first setting whose value breaks its rule."""
    for field in dataclasses.fields(settings):
        if rule := field.metadata.get("rule"):
            rule.check(field.name, getattr(settings, field.name))
