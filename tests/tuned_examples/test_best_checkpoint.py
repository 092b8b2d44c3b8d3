"""The best checkpoint stays when Tune deletes it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from rllib_arpo.recipes import best_checkpoint
from rllib_arpo.recipes.best_checkpoint import BEST, KeepBestCheckpoint, read_score

METRIC = "evaluation/env_runners/accuracy"


def save(experiment: Path, iteration: int, value: float | None) -> Path:
    """What Tune does, with two checkpoints to keep: it writes one, deletes one, and tells the callback."""
    trial = experiment / "trial"
    folder = trial / f"checkpoint_{iteration:06d}"
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    (folder / "weights" / "model").write_text(str(iteration))
    shutil.rmtree(trial / f"checkpoint_{iteration - 2:06d}", ignore_errors=True)
    result = {"training_iteration": iteration, "evaluation": {"env_runners": {"accuracy": value}}}
    if value is None:
        del result["evaluation"]
    told = SimpleNamespace(last_result=result, checkpoint=SimpleNamespace(path=str(folder)))
    KeepBestCheckpoint(METRIC).on_trial_save(iteration, [told], told)
    return folder


def kept(experiment: Path) -> str:
    assert [path.name for path in experiment.glob(f"{BEST}*") if path.is_dir() and not path.is_symlink()] == [
        (experiment / BEST).resolve().name
    ]
    return (experiment / BEST / "weights" / "model").read_text()


def test_the_largest_value_wins_and_of_equal_ones_the_last(tmp_path):
    seen = []
    for iteration, value in enumerate([None, 0.2, 0.5, float("nan"), 0.3, 0.5, 0.1, None]):
        save(tmp_path, iteration, value)
        seen.append(kept(tmp_path) if (tmp_path / BEST).exists() else None)
    assert seen == [None, "1", "2", "2", "2", "5", "5", "5"]
    assert read_score(tmp_path) == {"iteration": 5, "metric": METRIC, "value": 0.5}
    assert sorted(path.name for path in (tmp_path / "trial").iterdir()) == ["checkpoint_000006", "checkpoint_000007"]


def test_files_are_linked_where_the_disk_can(tmp_path, monkeypatch):
    folder = save(tmp_path, 1, 0.1)
    assert os.path.samefile(folder / "weights" / "model", tmp_path / BEST / "weights" / "model")

    def refused(source, target):
        raise OSError("cross-device link")

    monkeypatch.setattr(best_checkpoint.os, "link", refused)
    folder = save(tmp_path, 2, 0.2)
    assert not os.path.samefile(folder / "weights" / "model", tmp_path / BEST / "weights" / "model")
    assert kept(tmp_path) == "2"


def test_a_kill_while_files_are_linked_leaves_the_former_best(tmp_path, monkeypatch):
    save(tmp_path, 1, 0.1)

    def killed(source, target, **kwargs):
        Path(target, "weights").mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(best_checkpoint.shutil, "copytree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2, 0.2)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 1, 0.1)  # A resumed run has the same iteration again.
    assert read_score(tmp_path)["iteration"] == 1
    assert (tmp_path / BEST / "weights" / "model").read_text() == "1"
    save(tmp_path, 3, 0.3)
    assert kept(tmp_path) == "3"
