"""The machine that a measured number names."""

import shutil
import subprocess

from rllib_arpo.tracking import machine


def test_a_copy_in_somebody_elses_checkout_has_no_commit(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    copy = tmp_path / "machine.py"
    shutil.copy(machine.__file__, copy)
    monkeypatch.setattr(machine, "__file__", str(copy))
    assert machine.commit() is None
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    assert machine.commit() is None
    git("add", "machine.py")
    git("commit", "-q", "-m", "second")
    assert machine.commit() == git("rev-parse", "--short", "HEAD")
    copy.write_text("")
    assert machine.commit() == git("rev-parse", "--short", "HEAD") + "-dirty"
