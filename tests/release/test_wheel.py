"""The wheel, installed into an empty folder: all of `rllib_arpo` with its mark of types, and nothing beside it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
#: What the wheel is built from; setuptools writes into the folder of the sources, which is therefore a copy.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "rllib_arpo", "envs")


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment or None, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules(folder: Path) -> set[Path]:
    """The modules of a package and the templates of its pages, relative to it."""
    return {path.relative_to(folder) for pattern in ("*.py", "templates/*") for path in folder.rglob(pattern)}


@pytest.mark.slow
def test_the_wheel_installs_rllib_arpo_and_nothing_else(tmp_path):
    """Without a network: the build uses the installed setuptools, and no dependency is installed."""
    sources, wheels, site = (tmp_path / name for name in ("sources", "wheels", "site"))
    sources.mkdir()
    # A checkout on a machine without the package may have a link "rllib_arpo/envs".
    ignored = shutil.ignore_patterns("__pycache__", *["envs"] * (REPOSITORY / "rllib_arpo" / "envs").is_symlink())
    for name in SOURCES:
        origin = REPOSITORY / name
        if origin.is_dir():
            shutil.copytree(origin, sources / name, ignore=ignored)
        else:
            shutil.copy(origin, sources / name)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels), str(sources), cwd=tmp_path)
    (wheel,) = wheels.glob("*.whl")
    run(*pip, "install", "--no-deps", "--target", str(site), str(wheel), cwd=tmp_path)

    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"rllib_arpo", "bin"}
    assert [path.name for path in (site / "bin").iterdir()] == ["rllib-arpo"]
    of_envs = {Path("envs") / path for path in modules(sources / "envs")}
    assert modules(site / "rllib_arpo") == modules(sources / "rllib_arpo") | of_envs
    # Type checkers read the annotations of an installed package only if it has this file (PEP 561).
    assert (site / "rllib_arpo" / "py.typed").is_file()

    # -P keeps the working directory out of the path, PYTHONPATH puts the wheel before an editable installation.
    python, path = (sys.executable, "-P"), {"PYTHONPATH": str(site)}
    code = "import rllib_arpo, rllib_arpo.envs.forkable_env as env; print(rllib_arpo.__file__, env.__file__)"
    files = run(*python, "-c", code, cwd=site, **path).split()
    assert files == [str(site / "rllib_arpo" / name) for name in ("__init__.py", "envs/forkable_env.py")]
    assert "usage: rllib-arpo" in run(*python, str(site / "bin" / "rllib-arpo"), "--help", cwd=site, **path)
