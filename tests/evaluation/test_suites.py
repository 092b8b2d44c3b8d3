"""The paper's suites, the keys of their tasks, and the settings of the authors' evaluation."""

import argparse
import json

from rllib_arpo.commands import evaluate, run_command
from rllib_arpo.core.reshaping import Reshaping
from rllib_arpo.envs.tasks import TASKS
from rllib_arpo.evaluation import runner
from rllib_arpo.evaluation.arguments import chosen_tasks, read_env_configs
from rllib_arpo.evaluation.metrics import SUITES, suite_tasks


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    return parser.parse_args(["--model", "m", *arguments])


def test_the_tasks_of_the_suites():
    assert {task for tasks in SUITES.values() for task in tasks} <= TASKS.keys()
    assert suite_tasks(["knowledge", "deepsearch"]) == [
        "webwalker", "hotpotqa", "2wiki", "musique", "bamboogle", "gaia", "hle", "simpleqa", "xbench",
    ]  # fmt: skip
    assert chosen_tasks(parsed("--suite", "math", "--tasks", "trails,gsm8k")) == [*SUITES["math"], "trails"]


def test_keys_of_every_task_and_of_one():
    env_config = {"*": {"limit": 1, "tools": {}}, "gsm8k": {"limit": 2}}
    assert read_env_configs(parsed("--tasks", "gsm8k,trails", "--env-config", json.dumps(env_config))) == {
        "gsm8k": {"limit": 2, "tools": {}},
        "trails": {"limit": 1, "tools": {}},
    }


def test_env_config_from_a_yaml_file_and_relative_data_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.yaml").write_text("gsm8k: {limit: 2}\nhotpotqa: {limit: 3}\n")
    given = ["--tasks", "gsm8k,hotpotqa", "--env-config", "tasks.yaml", "--data", "gsm8k=a=b.jsonl"]
    assert read_env_configs(parsed(*given)) == {
        "gsm8k": {"limit": 2, "path": str(tmp_path / "a=b.jsonl")},
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
