"""Makes facts.json again, from the wheels of the versions in it, and says which of our uses do not work with which.

    python -m release.compatibility                  # after a change of what the package uses
    python -m release.compatibility vllm==0.34.0     # also takes this version in
    python -m release.compatibility --folder DIR     # keeps the unpacked sources there for the next call

Downloads each wheel (300 to 550 MB) from the package index, one at a time, keeps its .py files and deletes it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from release.compatibility import facts
from release.compatibility.uses import Use, all_uses

#: Names only choose a wheel: the sources are the same on all machines.
_WHEEL = ("--python-version", "3.12", "--platform", "manylinux_2_28_x86_64", "--only-binary", ":all:", "--no-deps")
_KEPT = (".py", ".dist-info/METADATA")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("added", nargs="*", metavar="PACKAGE==VERSION", help="a version that facts.json lacks")
    parser.add_argument("--folder", type=Path, help="keeps the unpacked sources there")
    arguments = parser.parse_args(argv)
    versions = {package: list(kept["versions"]) for package, kept in facts.load().items()}
    for text in arguments.added:
        package, _, version = text.partition("==")
        if package not in versions or not version:
            parser.error(f"{text!r}: must be one of {', '.join(f'{name}==VERSION' for name in versions)}.")
        versions[package].append(version)
    uses = all_uses()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        facts.save({package: _facts(package, set(of), uses, folder) for package, of in versions.items()})
    _report(uses)


def _facts(package: str, versions: set[str], uses: Sequence[Use], folder: Path) -> dict:
    names = {use.name for use in uses if facts.package_of(use.name) == package}
    required, by_version = {}, {}
    for version in facts.ordered(versions):
        root = folder / f"{package}-{version}"
        if not root.exists():
            _unpack(package, version, root)
        required[version] = facts.requirements(root) if package == "vllm" else {}
        by_version[version] = facts.extract(root, names)
    return {"versions": required, "names": facts.compressed(by_version)}


def _unpack(package: str, version: str, root: Path) -> None:
    """Downloads a wheel and unpacks its sources into `root`."""
    print(f"{package} {version} ...", file=sys.stderr)
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", *_WHEEL, f"{package}=={version}"]
        subprocess.run([*command, "--dest", temporary], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root, [name for name in archive.namelist() if name.endswith(_KEPT)])


def _report(uses: Sequence[Use]) -> None:
    known = facts.load()
    for package, kept in known.items():
        own = [use for use in uses if facts.package_of(use.name) == package]
        for version in kept["versions"]:
            found = facts.problems(own, facts.facts_of(known, package, version))
            print(f"{package} {version}: {len(own) - len(found)} of {len(own)} uses work")
            print("".join(f"  {problem}\n" for problem in found), end="")


if __name__ == "__main__":
    main()
