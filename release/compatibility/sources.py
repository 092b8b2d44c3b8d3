"""Looks names up in the source of a package without importing it."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Decorators that make a method something that is called differently; `LogprobsTensors` and the like have others.
_KINDS = {"staticmethod": "static", "classmethod": "class", "abstractmethod": "abstract"}
_PROPERTIES = ("property", "cached_property")


class Module:
    """The top level of one file. What stands in `if`, `try` and `with` there belongs to it."""

    def __init__(self, package: Package, name: str, path: Path):
        self.package, self.name, self.is_package = package, name, path.name == "__init__.py"
        self.body = list(flat(ast.parse(path.read_text(encoding="utf-8")).body))

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Name -> (module, name there)."""
        return {
            alias.asname or alias.name: (self.absolute(node), alias.name)
            for node in self.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that `node` imports from."""
        parts = self.name.split(".")
        parents = parts[: len(parts) - node.level + self.is_package] if node.level else []
        return ".".join([*parents, *([node.module] if node.module else [])])

    def defined(self, name: str) -> ast.stmt | None:
        return _first(self.body, name)


class Package:
    """An unpacked or installed package: `root` is the folder that has the package's folder."""

    def __init__(self, root: Path):
        self.root = root
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        if name not in self._modules:
            path = self.root.joinpath(*name.split("."))
            files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
            self._modules[name] = Module(self, name, files[0]) if files else None
        return self._modules[name]

    def find(self, module_name: str, name: str) -> tuple[Module, ast.stmt] | None:
        """Where `name` is defined that can be imported from `module_name`; None if that cannot be seen."""
        module = self.module(module_name)
        if module is None:
            return None
        node = module.defined(name)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            return self.find(module_name, node.value.id)
        if node is not None:
            return module, node
        return self.find(*module.imported[name]) if name in module.imported else None

    def lineage(self, module: Module, node: ast.ClassDef) -> Iterator[tuple[Module, ast.ClassDef]]:
        """A class and its bases, nearest first; bases of other packages are left out."""
        yield module, node
        for base in node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            found = self.find(module.name, base.id) if isinstance(base, ast.Name) else None
            if found is not None and isinstance(found[1], ast.ClassDef):
                yield from self.lineage(found[0], found[1])

    def describe(self, use: str) -> str | None:
        """What "module:name" or "module:Class.member" is: its kind, its parameters, what it returns; None: missing."""
        module_name, _, path = use.partition(":")
        name, _, member = path.partition(".")
        found = self.find(module_name, name)
        if found is None:
            return None
        module, node = found
        if isinstance(node, ast.ClassDef):
            return self._member(module, node, member) if member else self._class(module, node)
        if isinstance(node, Function) and not member:
            return f"{module.name} {_signature(node)}"
        return None if member else f"value of {module.name}"

    def _class(self, module: Module, node: ast.ClassDef) -> str:
        abstract = [
            method.name
            for _, owner in self.lineage(module, node)
            for method in owner.body
            if "abstractmethod" in decorators(method)
        ]
        return f"class of {module.name}" + (f", abstract: {' '.join(abstract)}" if abstract else "")

    def _member(self, module: Module, node: ast.ClassDef, name: str) -> str | None:
        lineage = list(self.lineage(module, node))
        for _, owner in lineage:
            if (statement := _first(flat(owner.body), name)) is not None:
                return _described(statement)
        if name == "__init__":
            return _constructor([owner for _, owner in lineage])
        return "attribute" if any(name in _assigned_in_methods(owner) for _, owner in lineage) else None


def flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of `body` and those inside of its `if`, `try` and `with`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for block in (node.body, getattr(node, "orelse", []), getattr(node, "finalbody", [])):
                yield from flat(block)
            for handler in getattr(node, "handlers", []):
                yield from flat(handler.body)


def _first(body: Iterable[ast.stmt], name: str) -> ast.stmt | None:
    """The first statement that defines `name`; overloads, which are for type checkers alone, do not."""
    return next((node for node in body if name in names_of(node) and "overload" not in decorators(node)), None)


def decorators(node: ast.stmt) -> list[str]:
    """Their last names: `abc.abstractmethod` is "abstractmethod"."""
    return [ast.unparse(decorator).rpartition(".")[2] for decorator in getattr(node, "decorator_list", [])]


def names_of(node: ast.stmt) -> list[str]:
    """The names that a statement defines, imports aside."""
    if isinstance(node, Function | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _described(node: ast.stmt) -> str:
    if not isinstance(node, Function):
        return "attribute"
    words = decorators(node)
    if any(word in _PROPERTIES for word in words):
        return "property"
    return " ".join([*(_KINDS[word] for word in words if word in _KINDS), _signature(node)])


def _signature(node: Function) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({parameters_of(node.args)}){returns}"


def parameters_of(arguments: ast.arguments) -> str:
    """As in a `def`, without annotations; each default is `...`."""
    bare = copy.deepcopy(arguments)
    for argument in (node for node in ast.walk(bare) if isinstance(node, ast.arg)):
        argument.annotation = None
    bare.defaults = [ast.Constant(...) for _ in bare.defaults]
    bare.kw_defaults = [default and ast.Constant(...) for default in bare.kw_defaults]
    return ast.unparse(bare)


def _constructor(lineage: list[ast.ClassDef]) -> str:
    """The constructor that `dataclass`, `NamedTuple` and msgspec's `Struct` make of the fields."""
    positional: dict[str, str] = {}
    keywords: dict[str, str] = {}
    for owner in reversed(lineage):
        all_keywords = any("kw_only=True" in ast.unparse(decorator) for decorator in owner.decorator_list)
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and not ast.unparse(node.annotation).startswith("ClassVar"):
                value = ast.unparse(node.value) if node.value else ""
                fields = keywords if all_keywords or "kw_only=True" in value else positional
                fields[names_of(node)[0]] = "=..." if value else ""
    parameters = ["self", *_written(positional), *(["*", *_written(keywords)] if keywords else [])]
    return f"({', '.join(parameters)})"


def _written(fields: dict[str, str]) -> list[str]:
    return [name + default for name, default in fields.items()]


def _assigned_in_methods(owner: ast.ClassDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
