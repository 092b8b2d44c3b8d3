"""What the versions of vLLM and torch have of what this package uses: `facts.json`, and how it is made and read."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from release.compatibility.sources import Package
from release.compatibility.uses import Use

FILE = Path(__file__).with_name("facts.json")
#: The requirements of a version that `facts.json` keeps: they pair it with versions of other packages.
PAIRED = ("torch", "transformers")
#: Package -> what each version requires, and what each name is: version -> facts.
Facts = dict[str, dict[str, dict[str, Any]]]


def package_of(name: str) -> str:
    """The package of "module:name"."""
    return name.split(".")[0].split(":")[0]


def extract(root: Path, names: Iterable[str]) -> dict[str, str | None]:
    """Name -> what it is (`Package.describe`) in the sources below `root`."""
    package = Package(root)
    return {name: package.describe(name) for name in sorted(names)}


def requirements(root: Path) -> dict[str, str]:
    """The versions of `PAIRED` that the wheel unpacked at `root` asks for."""
    (metadata,) = root.glob("*.dist-info/METADATA")
    texts = HeaderParser().parsestr(metadata.read_text(encoding="utf-8")).get_all("Requires-Dist") or []
    asked = [requirement for text in texts if (requirement := Requirement(text)).marker is None]
    return {asked.name: str(asked.specifier) for asked in asked if asked.name in PAIRED}


def compressed(by_version: Mapping[str, dict[str, str | None]]) -> dict[str, dict[str, str | None]]:
    """Version -> name -> fact becomes name -> version -> fact, with the versions at which the fact changes."""
    versions = ordered(by_version)
    changes: dict[str, dict[str, str | None]] = {}
    for version, previous in zip(versions, [None, *versions], strict=False):
        for name, fact in by_version[version].items():
            if previous is None or by_version[previous][name] != fact:
                changes.setdefault(name, {})[version] = fact
    return changes


def load() -> Facts:
    return json.loads(FILE.read_text(encoding="utf-8"))


def save(facts: Facts) -> None:
    FILE.write_text(json.dumps(facts, indent=1, sort_keys=False) + "\n", encoding="utf-8")


def ordered(versions: Iterable[str]) -> list[str]:
    return sorted(versions, key=Version)


def facts_of(facts: Facts, package: str, version: str) -> dict[str, str | None]:
    """Name -> fact of one version of a package."""
    return {
        name: changes[max((at for at in changes if Version(at) <= Version(version)), key=Version)]
        for name, changes in facts[package]["names"].items()
    }


def problems(uses: Sequence[Use], facts: Mapping[str, str | None]) -> list[str]:
    """The uses that do not work with these facts, a sentence each."""
    found = [f"{use.where}: {use.name} {problem}" for use in uses if (problem := _problem(use, facts.get(use.name)))]
    return found + _not_overridden(uses, facts)


def _problem(use: Use, fact: str | None) -> str | None:
    if use.overridden_by is not None:
        return _problem_of_override(use, fact)
    if fact is None:
        return None if use.optional else "is missing."
    if use.call is not None:
        # A bound method gets one argument more.
        is_bound = "." in use.name.partition(":")[2] and not fact.startswith("static")
        signature = signature_of(fact)
        bind = signature.bind if use.call.complete else signature.bind_partial
        try:
            bind(*[None] * (use.call.num_args + is_bound), **dict.fromkeys(use.call.keywords))
        except TypeError as error:
            return f"is {fact}: {error}."
    return None


def _problem_of_override(use: Use, fact: str | None) -> str | None:
    """vLLM calls our method with the arguments of its own. It does not call what it does not have."""
    if fact is None or fact == "(self)":
        return None
    if fact == "property" and not use.overridden_by.startswith("("):
        return None  # A decorator of ours decides what it becomes; its test compares that with these facts.
    if "(" not in fact:
        return f"is {fact}, and not a method."
    theirs = [None] * len(signature_of(fact).parameters)
    try:
        signature_of(use.overridden_by).bind(*theirs)
    except TypeError as error:
        return f"is {fact}: {error}."
    return None


def _not_overridden(uses: Sequence[Use], facts: Mapping[str, str | None]) -> list[str]:
    overridden: dict[str, set[str]] = {}
    for use in uses:
        if use.overridden_by is not None:
            base, _, method = use.name.rpartition(".")
            overridden.setdefault(base, set()).add(method)
    return [
        f"{base}.{method} is abstract, and no method of ours overrides it."
        for base, methods in overridden.items()
        for method in (facts.get(base) or "").partition("abstract: ")[2].split()
        if method not in methods
    ]


def signature_of(fact: str) -> inspect.Signature:
    """The parameters of a fact like "class (cls, a, b=...) -> int"."""
    text = fact[fact.index("(") :].partition(" -> ")[0]
    scope: dict[str, Any] = {}
    exec(f"def function{text}: ...", scope)
    return inspect.signature(scope["function"])
