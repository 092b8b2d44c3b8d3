"""The paper's suites: their tasks, their files, and the settings of the authors' evaluation."""

import argparse
import json

from rllib_arpo.commands import evaluate, run_command
from rllib_arpo.core.reshaping import Reshaping
from rllib_arpo.envs.tasks import TASKS
from rllib_arpo.evaluation import runner
from rllib_arpo.evaluation.arguments import chosen_tasks, read_env_configs
from rllib_arpo.evaluation.metrics import SUITES, score_of, suite_tasks


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    return parser.parse_args(["--model", "m", *arguments])


def test_the_tasks_of_the_suites():
    assert {task for tasks in SUITES.values() for task in tasks} <= TASKS.keys()
    assert suite_tasks(["knowledge", "deepsearch"]) == [
        "webwalker", "hotpotqa", "2wiki", "musique", "bamboogle", "gaia", "hle", "simpleqa", "xbench",
    ]  # fmt: skip
    scores = {task: score_of(task) for task in ("math500", "webwalker", "hotpotqa", "arithmetic")}
    assert scores == {"math500": "pass_at_1", "webwalker": "pass_at_1", "hotpotqa": "f1", "arithmetic": "pass_at_1"}
    assert chosen_tasks(parsed("--suite", "math", "--tasks", "trails,gsm8k")) == [*SUITES["math"], "trails"]


def test_files_below_a_root_and_keys_of_every_task(tmp_path):
    for name in ("aime24.jsonl", "aime25/test.jsonl", "MATH500/test.parquet", "gsm8k.json", "gsm8k/train.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    env_config = {"*": {"few_shot": 1, "tools": {}}, "gsm8k": {"few_shot": 2}, "math": {"hub_id": "own/math"}}
    args = parsed(
        *("--suite", "math", "--tasks", "arithmetic", "--data-root", str(tmp_path)),
        *("--data", "aime24=elsewhere.jsonl", "--env-config", json.dumps(env_config)),
    )
    found = read_env_configs(args)
    assert found.pop("aime24")["path"].endswith("/elsewhere.jsonl")
    assert found == {
        "aime25": {"few_shot": 1, "tools": {}, "path": str(tmp_path / "aime25" / "test.jsonl")},
        "math500": {"few_shot": 1, "tools": {}, "path": str(tmp_path / "MATH500" / "test.parquet")},
        "gsm8k": {"few_shot": 2, "tools": {}, "path": str(tmp_path / "gsm8k.json")},
        "math": {"few_shot": 1, "tools": {}, "hub_id": "own/math"},
        "arithmetic": {"few_shot": 1, "tools": {}},
    }


def test_a_missing_file_is_named(arguments, capsys, tmp_path):
    for task in SUITES["math"][:-1]:
        (tmp_path / f"{task}.jsonl").touch()
    command = [*arguments(tasks="", suite="math", env_config="{}"), "--data-root", str(tmp_path)]
    assert run_command("evaluate", command) == 2
    assert capsys.readouterr().err == (
        f"error: --data-root {tmp_path} has no file for the task 'math': neither math.jsonl (.json, .parquet) nor"
        " math/test.jsonl; name its file with --data math=PATH.\n"
    )
    (tmp_path / "aime24.json").touch()
    assert run_command("evaluate", command) == 2
    assert "has 2 files for the task 'aime24' (aime24.json, aime24.jsonl); choose one" in capsys.readouterr().err


def test_env_config_from_a_yaml_file_and_relative_data_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.yaml").write_text("gsm8k: {few_shot: 2}\nhotpotqa: {limit: 3}\n")
    given = ["--tasks", "gsm8k,hotpotqa", "--env-config", "tasks.yaml", "--data", "gsm8k=a=b.jsonl"]
    assert read_env_configs(parsed(*given)) == {
        "gsm8k": {"few_shot": 2, "path": str(tmp_path / "a=b.jsonl")},
        "hotpotqa": {"limit": 3},
    }


def test_how_the_authors_sample_reaches_the_engine(arguments, monkeypatch, tmp_path):
    engines, make_engine = [], runner.make_engine

    def kept(*args):
        engines.append(make_engine(*args))
        return engines[-1]

    monkeypatch.setattr(runner, "make_engine", kept)
    authors = ["--temperature", "0.6", "--top-p", "0.95", "--top-k", "20", "--repetition-penalty", "1.1"]
    assert run_command("evaluate", [*arguments("--limit", "2"), *authors]) == 0
    (engine,) = engines
    sampled = {(request.temperature, request.reshaping, request.max_entropies) for request in engine.submitted}
    assert sampled == {(0.6, Reshaping(0.95, 20, 1.1), 0)}
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["settings"]["top_k"] == 20
