"""The best checkpoint stays when Tune deletes it; a run goes on at the newest whole one."""

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow.fs import LocalFileSystem

from rllib_arpo.files import write_checksums
from rllib_arpo.recipes import checkpoints
from rllib_arpo.recipes.checkpoints import BEST, KeepCheckpoints, mark_whole, read_score, take_newest
from tests.helpers.damage import flip_a_bit

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
    told = SimpleNamespace(last_result=result, checkpoint=SimpleNamespace(path=str(folder)), local_path=None)
    KeepCheckpoints(METRIC).on_trial_save(iteration, [told], told)
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


def test_a_kill_while_files_are_linked_leaves_the_former_best(tmp_path, monkeypatch):
    save(tmp_path, 1, 0.1)

    def killed(source, target, **kwargs):
        Path(target, "weights").mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.shutil, "copytree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2, 0.2)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 1, 0.1)  # A resumed run has the same iteration again.
    assert read_score(tmp_path)["iteration"] == 1
    assert (tmp_path / BEST / "weights" / "model").read_text() == "1"
    save(tmp_path, 3, 0.3)
    assert kept(tmp_path) == "3"


def test_the_results_so_far_are_saved_with_a_checkpoint(tmp_path):
    (tmp_path / "staging").mkdir()
    for name in ("result.json", "progress.csv"):
        (tmp_path / "staging" / name).write_text('{"training_iteration": 1}\n')
    (tmp_path / "trial" / "checkpoint_000000").mkdir(parents=True)
    checkpoint = SimpleNamespace(path=str(tmp_path / "trial" / "checkpoint_000000"))
    told = SimpleNamespace(
        last_result={"training_iteration": 1}, checkpoint=checkpoint, local_path=str(tmp_path / "staging")
    )
    KeepCheckpoints(METRIC).on_trial_save(1, [told], told)
    for name in ("result.json", "progress.csv"):
        assert (tmp_path / "trial" / name).read_text() == '{"training_iteration": 1}\n'


def written(run: Path, name: str, iteration: int) -> Path:
    folder = run / name
    (folder / "weights").mkdir(parents=True)
    (folder / "weights" / "model").write_text(f"weights of {iteration}")
    (folder / "empty").touch()
    write_checksums(str(folder / "weights"), LocalFileSystem())
    write_checksums(str(folder), LocalFileSystem())
    mark_whole(folder, iteration)
    return folder


def results(run: Path, iterations: range, rest: str = "") -> None:
    (run / "trial").mkdir(exist_ok=True)
    text = "".join(json.dumps({"training_iteration": i}) + "\n" for i in iterations)
    (run / "trial" / "result.json").write_text(text + rest)
    (run / "trial" / "progress.csv").write_text("it,x\n" + "".join(f'{i},"a\nb"\n' for i in iterations) + rest[:3])


def left(run: Path) -> tuple[list[str], list[int]]:
    """(the checkpoints, the iterations of the results) in the folder of a run."""
    folders = [path for path in (*run.glob("*"), *run.glob("trial/*")) if path.is_dir() and path.name != "trial"]
    rows = (run / "trial" / "result.json").read_text().splitlines()
    numbers = [json.loads(row)["training_iteration"] for row in rows]
    with (run / "trial" / "progress.csv").open(newline="") as file:
        assert [*csv.reader(file)] == [["it", "x"], *([str(i), "a\nb"] for i in numbers)]
    return sorted(str(path.relative_to(run)) for path in folders), numbers


def test_a_run_goes_on_at_its_newest_checkpoint_and_without_later_results(tmp_path):
    written(tmp_path, "trial/checkpoint_000003", 8)
    written(tmp_path, "trial/checkpoint_000004", 10)
    results(tmp_path, range(1, 13), rest='{"training_iter')
    for name in ("error.txt", "error.pkl"):
        (tmp_path / "trial" / name).touch()
    assert take_newest(tmp_path) == tmp_path / "resumed_at_000010"
    assert left(tmp_path) == (["resumed_at_000010"], [*range(1, 11)])
    assert not [*tmp_path.glob("trial/error.*")]
    assert take_newest(tmp_path) == tmp_path / "resumed_at_000010"  # It was killed again, at once.
    written(tmp_path, "trial/checkpoint_000000", 12)
    results(tmp_path, range(1, 13))
    assert take_newest(tmp_path) == tmp_path / "resumed_at_000012"
    assert left(tmp_path) == (["resumed_at_000012"], [*range(1, 13)])


@pytest.mark.parametrize(
    ("hurt", "said"),
    [
        (lambda folder: flip_a_bit(folder / "weights/model"), "weights/model is not the file that was saved: its"),
        (lambda folder: (folder / "empty").unlink(), "empty is missing"),
        (lambda folder: (folder / "checksums.json").unlink(), "checksums.json is missing"),
        (lambda folder: (folder / "whole.json").unlink(), None),
        (lambda folder: flip_a_bit(folder / "whole.json"), None),
    ],
)
def test_a_torn_checkpoint_gives_way_to_the_one_before(tmp_path, capsys, hurt, said):
    written(tmp_path, "trial/checkpoint_000003", 8)
    hurt(newest := written(tmp_path, "trial/checkpoint_000004", 10))
    results(tmp_path, range(1, 11))
    assert take_newest(tmp_path) == tmp_path / "resumed_at_000008"
    assert left(tmp_path) == (["resumed_at_000008"], [*range(1, 9)])
    assert capsys.readouterr().out.startswith(f"checkpoint_000004 is left out: {newest}/{said}" if said else "")


@pytest.mark.parametrize(
    "hurt",
    [
        lambda folder: flip_a_bit(folder / "weights" / "model"),
        lambda folder: ((folder / "weights" / "model").unlink(), (folder / "weights" / "model").mkdir()),
        lambda folder: (folder / "whole.json").unlink(),
    ],
)
def test_results_and_damaged_or_torn_checkpoints_are_never_removed(tmp_path, hurt):
    folder = written(tmp_path, "trial/checkpoint_000000", 1)
    hurt(folder)
    results(tmp_path, range(1, 2))
    with pytest.raises(ValueError, match=r"no checkpoint is whole\. Nothing was removed"):
        take_newest(tmp_path)
    assert left(tmp_path) == (["trial/checkpoint_000000"], [1]) and (folder / "empty").exists()
