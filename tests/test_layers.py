"""Imports point down: a module imports at load time only from its own room or from rooms below."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import rllib_arpo

REPOSITORY = Path(__file__).resolve().parents[1]
#: From the ground up. A room is a package, or a module, of `rllib_arpo`; those of one line do not import each other.
LAYERS = (
    ("core", "files", "redaction", "terminal"),
    ("envs", "faults"),
    ("policy", "errors"),
    ("engine",),
    ("weights",),
    ("rollout",),
    ("connectors",),
    ("learner",),
    ("record",),
    ("show",),
    ("tracking",),
    ("options",),
    ("cold_start",),
    ("validation",),
    ("arpo_config",),
    ("arpo",),
    ("baselines",),
    ("evaluation", "doctor"),
    ("mlflow",),
    ("recipes",),
    ("commands",),
    ("__main__",),
)
ROOMS = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def modules() -> Iterator[tuple[str, Path]]:
    """(name below `rllib_arpo`, file) of all that is installed."""
    package = Path(rllib_arpo.__file__).parent
    for folder, prefix in ((package, ""), (REPOSITORY / "envs", "envs.")):
        for path in sorted(folder.rglob("*.py")):
            name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix("__init__").rstrip(".")
            if not (folder == package and name.startswith("envs")):
                yield f"{prefix}{name}".rstrip("."), path


def imported(body: list[ast.stmt]) -> Iterator[str]:
    """The names below `rllib_arpo` that these statements import at once: not in functions, not for a type checker."""
    for node in body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rllib_arpo"):
            below = node.module.removeprefix("rllib_arpo").lstrip(".")
            yield from (f"{below}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.ClassDef | ast.Try | ast.With):
            yield from imported(node.body)
        elif isinstance(node, ast.If):
            yield from imported(node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else node.body + node.orelse)


def room_of(name: str) -> str:
    return name.partition(".")[0]


def test_imports_point_down():
    upward = [
        f"{name} imports {other}"
        for name, path in modules()
        if name
        for other in imported(ast.parse(path.read_text(encoding="utf-8")).body)
        if room_of(name) != room_of(other) and ROOMS.get(room_of(other), 0) >= ROOMS[room_of(name)]
    ]
    assert upward == []


def test_every_room_has_its_layer():
    assert {room_of(name) for name, _ in modules() if name} == ROOMS.keys()


def test_no_module_bears_the_name_of_one_of_the_standard_library():
    """A script in the same folder, or a debugger, would import the wrong one."""
    assert [name for name, _ in modules() if name.rpartition(".")[2] in sys.stdlib_module_names] == []


def test_only_the_tests_of_release_gpus_and_documents_import_it():
    """release, in turn, may use the tests' tables and servers."""
    imports, tests = re.compile(r"^\s*(?:from|import) release\b", re.MULTILINE), REPOSITORY / "tests"
    importing = {path.relative_to(tests).parts[0] for path in tests.rglob("*.py") if imports.search(path.read_text())}
    assert importing == {"docs", "gpu", "release"}


def all_files() -> Iterator[tuple[str, Path]]:
    """As `modules`, with the files that are not installed."""
    yield from modules()
    for folder in ("tests", "release", "tuned_examples"):
        yield from ((str(path), path) for path in (REPOSITORY / folder).rglob("*.py"))


def test_no_file_is_longer_than_the_house_style_allows():
    assert [name for name, path in all_files() if path.read_text(encoding="utf-8").count("\n") > 600] == []


def test_no_function_is_longer_than_the_house_style_allows():
    long = [
        f"{name}.{node.name}"
        for name, path in all_files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= 60
    ]
    assert long == []
