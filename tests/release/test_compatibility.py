"""What this package uses of vLLM and torch exists in every version that it supports (release/compatibility)."""

import ast
import importlib.metadata
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from release.compatibility import facts
from release.compatibility.uses import PACKAGE, RECEIVERS, Call, Use, all_uses, uses_of_file
from rllib_arpo.engine.vllm_versions import FIRST_WITH_TRANSFER, VLLM_VERSIONS, vllm_version

REPOSITORY = Path(__file__).resolve().parents[2]
#: Files that only a vLLM from this version on reaches.
SINCE = {
    "engine/vllm/weight_transfer.py": FIRST_WITH_TRANSFER,
    # Until then vLLM refuses its newer model runner where there are logits processors.
    "engine/vllm/entropy_processor_v2.py": Version("0.31"),
}
KNOWN = facts.load()
USES = all_uses()
VERSIONS = [(package, version) for package, kept in KNOWN.items() for version in kept["versions"]]


def used_of(package: str, file: str | None = None) -> list[Use]:
    """The uses of a package, those of one file alone if it is given."""
    of_file = [use for use in USES if file in (None, use.where.partition(":")[0])]
    return [use for use in of_file if facts.package_of(use.name) == package]


def test_the_facts_are_those_of_all_uses():
    names = {package: kept["names"].keys() for package, kept in KNOWN.items()}
    wanted = {package: {use.name for use in used_of(package)} for package in names}
    assert names == wanted, "Run `python -m release.compatibility`: what the package uses has changed."


@pytest.mark.parametrize(("package", "version"), VERSIONS)
def test_every_use_works_with_every_supported_version(package, version):
    reached = [
        use for use in used_of(package) if Version(version) >= SINCE.get(use.where.partition(":")[0], Version("0"))
    ]
    assert facts.problems(reached, facts.facts_of(KNOWN, package, version)) == []


@pytest.mark.parametrize("file", SINCE)
def test_a_file_is_kept_from_just_the_versions_with_which_it_does_not_work(file):
    own = used_of("vllm", file)
    works = [v for v in KNOWN["vllm"]["versions"] if not facts.problems(own, facts.facts_of(KNOWN, "vllm", v))]
    assert works == [version for version in KNOWN["vllm"]["versions"] if Version(version) >= SINCE[file]]
    assert len(works) < len(KNOWN["vllm"]["versions"])


def test_the_facts_cover_the_supported_versions():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (asked,) = [r for r in map(Requirement, project["optional-dependencies"]["gpu"]) if r.name == "vllm"]
    assert asked.specifier == VLLM_VERSIONS
    minors = {Version(version).release[:2] for version in KNOWN["vllm"]["versions"]}
    assert minors == {(0, minor) for minor in range(200) if Version(f"0.{minor}") in VLLM_VERSIONS}
    paired = {required["torch"] for required in KNOWN["vllm"]["versions"].values()}
    assert paired == {f"=={version}" for version in KNOWN["torch"]["versions"]}


@pytest.mark.parametrize("package", ["vllm", "torch"])
def test_the_facts_of_the_installed_version_are_true(package):
    installed = vllm_version() if package == "vllm" else Version(importlib.metadata.version("torch"))
    root = Path(importlib.util.find_spec(package).origin).parents[1]
    names = KNOWN[package]["names"]
    assert facts.extract(root, names) == facts.facts_of(KNOWN, package, installed.public)


def test_no_import_and_no_receiver_is_overlooked():
    """Looked up in another way: in the text of the files."""
    imports = re.compile(r"^ *from (vllm[\w.]*) import ([\w, ]+)$", re.MULTILINE)
    texts = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    imported = {
        f"{module}:{name.split(' as ')[0].strip()}"
        for text in texts.values()
        for module, names in imports.findall(text)
        for name in names.split(",")
    }
    assert imported
    assert imported <= KNOWN["vllm"]["names"].keys()
    expressions = {
        file: {ast.unparse(node) for node in ast.walk(ast.parse(texts[file])) if isinstance(node, ast.expr)}
        | {node.arg for node in ast.walk(ast.parse(texts[file])) if isinstance(node, ast.arg)}
        for file in RECEIVERS
    }
    assert [(file, key) for file, table in RECEIVERS.items() for key in table if key not in expressions[file]] == []


USER = """
import os
from vllm import Engine, Params as P
from vllm.base import Processor, run

os.environ["VLLM_USED"] = "1"

class Ours(Processor):
    def apply(self, logits, extra=None):
        return run(logits, *self.rest, fast=True)

    def _private(self, params: P | None, other: Ours):
        return getattr(params, "seed", 0) + params.top_k.value + other.seed

def start():
    engine = Engine(P(1, seed=2), **{})
    self._llm.collective_rpc("reload", kwargs={"weights": 0})
    self._llm.add(1, priority=2)
"""


def test_uses_are_found_in_a_source(tmp_path, monkeypatch):
    monkeypatch.setattr("release.compatibility.uses.PACKAGE", tmp_path)
    path = tmp_path / "engine" / "vllm" / "engine.py"
    path.parent.mkdir(parents=True)
    path.write_text(USER)
    of_vllm = "vllm.v1.worker.gpu_worker:Worker"
    where = "engine/vllm/engine.py"
    assert set(uses_of_file(path)) == {
        Use("vllm:Engine", where),
        Use("vllm:Params", where),
        Use("vllm.base:Processor", where),
        Use("vllm.base:run", where),
        Use("vllm.envs:VLLM_USED", f"{where}:6"),
        Use("vllm.base:Processor.apply", f"{where}:9", overridden_by="(self, logits, extra=...)"),
        Use("vllm.base:run", f"{where}:10", call=Call(1, ("fast",), complete=False)),
        Use("vllm:Params.seed", f"{where}:13", optional=True),
        Use("vllm:Params.top_k", f"{where}:13"),
        Use("vllm:Engine.__init__", f"{where}:16", call=Call(1, (), complete=False)),
        Use("vllm:Params.__init__", f"{where}:16", call=Call(1, ("seed",))),
        Use(f"{of_vllm}.reload", f"{where}:17", call=Call(0, ("weights",))),
        Use("vllm:LLMEngine.collective_rpc", f"{where}:17"),
        Use("vllm:LLMEngine.add", f"{where}:18", call=Call(1, ("priority",))),
        Use("vllm:LLMEngine.add", f"{where}:18"),
    }


LIBRARY = {
    "__init__.py": "if TYPE_CHECKING:\n    from .parts import Part, Alias as Other\n",
    "parts.py": """
class Base(ABC):
    kept: int

    @abstractmethod
    def work(self, a, *, b=1): ...

    @property
    def size(self): ...

@dataclass
class Part(Base):
    name: str
    places: list = field(default_factory=list, kw_only=True)
    kind: ClassVar[str] = "part"

    @overload
    def make(cls): ...
    @classmethod
    async def make(cls, x=2) -> "Part": ...

    def late(self):
        self.found = 1

Alias = Part
""",
}


def test_names_are_described_from_the_source_of_a_package(tmp_path):
    (tmp_path / "lib").mkdir()
    for name, text in LIBRARY.items():
        (tmp_path / "lib" / name).write_text(text)
    names = ("Part", "Other", "Part.__init__", "Part.make", "Part.work", "Part.size", "Part.found", "Part.kept")
    described = facts.extract(tmp_path, [f"lib:{name}" for name in (*names, "Part.gone", "Gone")])
    assert described == {
        "lib:Part": "class of lib.parts, abstract: work",
        "lib:Other": "class of lib.parts, abstract: work",
        "lib:Part.__init__": "(self, kept, name, *, places=...)",
        "lib:Part.make": "class (cls, x=...) -> 'Part'",
        "lib:Part.work": "abstract (self, a, *, b=...)",
        "lib:Part.size": "property",
        "lib:Part.found": "attribute",
        "lib:Part.kept": "attribute",
        "lib:Part.gone": None,
        "lib:Gone": None,
    }


@pytest.mark.parametrize(
    ("use", "fact", "problem"),
    [
        (Use("vllm:f", "a.py"), None, "is missing."),
        (Use("vllm:C.f", "a.py", optional=True), None, None),
        (Use("vllm:f", "a.py", call=Call(1, ("b",))), "vllm (a, b=...) -> int", None),
        (Use("vllm:f", "a.py", call=Call(1, ("c",))), "v (a)", "is v (a): got an unexpected keyword argument 'c'."),
        (Use("vllm:f", "a.py", call=Call(0, ())), "vllm (a)", "is vllm (a): missing a required argument: 'a'."),
        (Use("vllm:f", "a.py", call=Call(0, (), complete=False)), "vllm (a)", None),
        (Use("vllm:C.f", "a.py", call=Call(1, ())), "(self, a)", None),
        (Use("vllm:C.f", "a.py", call=Call(1, ())), "static (a)", None),
        (Use("vllm:C.f", "a.py", call=Call(2, ())), "static (a)", "is static (a): too many positional arguments."),
        (Use("vllm:C.f", "a.py", overridden_by="(self, a)"), "abstract (self, b)", None),
        (Use("vllm:C.f", "a.py", overridden_by="(self)"), "(self, b)", "is (self, b): too many positional arguments."),
        (Use("vllm:C.f", "a.py", overridden_by="(self)"), "property", "is property, and not a method."),
    ],
)  # fmt: skip
def test_a_use_that_does_not_work_is_one_sentence(use, fact, problem):
    found = facts.problems([use], {use.name: fact})
    assert found == ([] if problem is None else [f"a.py: {use.name} {problem}"])


def test_an_abstract_method_that_is_not_overridden():
    uses = [Use("vllm:C", "a.py"), Use("vllm:C.f", "a.py", overridden_by="(self)")]
    known = {"vllm:C": "class of vllm, abstract: f g", "vllm:C.f": "abstract (self)"}
    assert facts.problems(uses, known) == ["vllm:C.g is abstract, and no method of ours overrides it."]


def test_facts_are_kept_where_they_change():
    kept = facts.compressed({"0.10": {"a": "x", "b": None}, "0.9": {"a": "x", "b": "y"}})
    assert kept == {"a": {"0.9": "x"}, "b": {"0.9": "y", "0.10": None}}
    assert facts.facts_of({"p": {"names": kept}}, "p", "0.11") == {"a": "x", "b": None}
