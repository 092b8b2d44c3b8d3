"""`make docs` builds the site."""

import subprocess
import sys

import pytest

from tests.docs.pages import REPOSITORY

pytest.importorskip("sphinx")


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    """Sphinx warns of a dead link, of a docstring that is not reStructuredText, of a page in no table of contents."""
    makefile = (REPOSITORY / "Makefile").read_text()
    (command,) = [line.strip() for line in makefile.splitlines() if "-b html docs" in line]
    options = command.removeprefix("$(BIN)/python ").replace("docs/_build/html", str(tmp_path)).split()
    done = subprocess.run([sys.executable, *options], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    reference = (tmp_path / "api" / "algorithms.html").read_text()
    assert "num_initial_rollouts" in reference
    assert (tmp_path / "agent.html").is_file()
