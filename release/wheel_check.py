"""Builds the wheel, installs it into an empty folder and checks the result for users.

    python release/wheel_check.py

Needs no network: the build uses the installed setuptools, and no dependency is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
#: The files to build from; build and test folders of the working tree stay out.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "rllib_arpo", "envs")

IMPORT = """
import sys
import rllib_arpo, rllib_arpo.envs, rllib_arpo.envs.forkable_env
print(rllib_arpo.__file__, rllib_arpo.envs.__file__, sep="\\n")
"""


def build_wheel(sources: Path, folder: Path) -> Path:
    """Builds the wheel of a copy of the project (setuptools writes into the source folder) and returns its path."""
    for name in SOURCES:
        origin = REPOSITORY / name
        if origin.is_dir():
            shutil.copytree(origin, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, sources / name)
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(sources))
    (wheel,) = folder.glob("*.whl")
    return wheel


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def check_installation(site: Path, sources: Path) -> None:
    """Checks the folder into which the wheel was installed.

    Raises:
        AssertionError: a module is missing, or the wheel has one that it must not have.
    """
    top_level = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    commands = {path.name for path in (site / "bin").glob("*")}
    assert commands <= {"rllib-arpo"}, f"The wheel installs the commands {sorted(commands)}, not rllib-arpo alone."
    top_level.discard("bin")
    assert top_level == {"rllib_arpo"}, f"The wheel installs {sorted(top_level)}, not rllib_arpo alone."

    expected = {path.relative_to(sources) for path in files_of(sources / "rllib_arpo")}
    expected |= {"rllib_arpo" / path.relative_to(sources) for path in files_of(sources / "envs")}
    installed = {path.relative_to(site) for path in files_of(site / "rllib_arpo")}
    assert installed == expected, f"Missing: {sorted(expected - installed)}; too many: {sorted(installed - expected)}."

    assert (site / "rllib_arpo" / "py.typed").is_file(), "The wheel lacks rllib_arpo/py.typed."

    # -P keeps the working directory out of the path, PYTHONPATH puts the wheel before an editable installation.
    done = subprocess.run(
        [sys.executable, "-P", "-c", IMPORT], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, cwd=site
    )
    assert done.returncode == 0, done.stderr
    imported = done.stdout.splitlines()[-2:]
    wanted = [str(site / "rllib_arpo" / "__init__.py"), str(site / "rllib_arpo" / "envs" / "__init__.py")]
    assert imported == wanted, f"Imported {imported}."


def files_of(folder: Path) -> list[Path]:
    """The modules of a package, and the templates of its pages."""
    return [path for pattern in ("*.py", "templates/*") for path in folder.rglob(pattern)]


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        sources, wheels, site = (Path(scratch).resolve() / name for name in ("sources", "wheels", "site"))
        sources.mkdir()
        wheel = build_wheel(sources, wheels)
        pip("install", "--no-deps", "--target", str(site), str(wheel))
        check_installation(site, sources)
        print(f"{wheel.name}: rllib_arpo.envs imports, and no other top-level package is installed.")


if __name__ == "__main__":
    main()
