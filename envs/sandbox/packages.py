"""The installed packages that a fenced program sees: the ones that its owner lists, and all that they require."""

from __future__ import annotations

import csv
import functools
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from rllib_arpo.envs.support.texts import first_line

#: The packages that the python tool shows unless its configuration lists others.
DEFAULT = ("numpy", "pandas", "scipy", "sympy")


@functools.cache
def visible_files(names: tuple[str, ...]) -> Mapping[str, str]:
    """The files and folders of these packages and of all that they require: path below a folder of packages -> path.

    Args:
        names: as pip knows them ("scikit-learn", "pandas[excel]").

    Raises:
        ValueError: one is not installed, or its installation does not list its files.
    """
    found = {}
    for package in _closure(names):
        found.update(_entries(package))
    return found


def import_names(names: tuple[str, ...]) -> frozenset[str]:
    """The top-level modules among what `visible_files` gives."""
    return frozenset(path.split("/")[0].partition(".")[0] for path in visible_files(names))


def _closure(names: tuple[str, ...]) -> list[Distribution]:
    """The listed packages, and what they require if it is installed."""
    try:
        todo = [Requirement(name) for name in names]
    except InvalidRequirement as error:
        raise ValueError(f"The python tool's packages must be names of packages ({first_line(error)}).") from error
    listed, seen, found = len(todo), set(), []
    for place, one in enumerate(todo):  # it grows
        key = canonicalize_name(one.name), *sorted(one.extras)
        if key in seen:
            continue
        seen.add(key)
        try:
            found.append(distribution(one.name))
        except PackageNotFoundError as error:
            if place < listed:
                raise ValueError(f"The python tool's packages name {one.name!r}, which is not installed.") from error
            continue
        wanted = map(Requirement, found[-1].requires or ())
        extras = ("", *one.extras)
        todo += [w for w in wanted if w.marker is None or any(w.marker.evaluate({"extra": e}) for e in extras)]
    return found


def _entries(package: Distribution) -> dict[str, str]:
    """The outermost files and folders that belong to this package alone (see `visible_files`)."""
    found = {path: str(package.locate_file(path)) for path in dict.fromkeys(_outermost(package))}
    return {path: place for path, place in found.items() if os.path.exists(place)}


def _outermost(package: Distribution) -> Iterator[str]:
    @functools.cache
    def shared(folder: str) -> bool:
        init = package.locate_file(f"{folder}/__init__.py")
        return folder.rpartition("/")[2].isidentifier() and not os.path.exists(str(init))

    record = package.read_text("RECORD")
    if record is None or "__editable__" in record:
        name = package.metadata["Name"]
        raise ValueError(f"The python tool cannot show {name!r}: its installation (editable?) does not list its files.")
    for path, *_ in csv.reader(record.splitlines()):
        first, *rest = path.split("/")
        if first in ("", "..") or first.endswith(".pth"):
            continue
        while rest and shared(first):  # a namespace, where other packages have files as well
            first = f"{first}/{rest.pop(0)}"
        yield first
