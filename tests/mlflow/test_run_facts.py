"""The facts of a run, literally."""

import platform
import subprocess
from importlib import metadata

import pytest

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.mlflow.run_facts import command_line, description, run_tags


def config(**rollout) -> dict:
    made = ARPOConfig().environment("ToolEnv-v0", env_config={"task": "gsm8k", "tools": {"python": {}, "search": {}}})
    return made.language_model(model_name_or_path="models/small").adaptive_rollout(**rollout).to_dict()


def test_a_run_of_arpo():
    folder = "/home/me/ray results/ARPO_1"
    text = description("ARPO", config(), "python train.py --seed 0", "2187257-dirty", folder)
    assert text.splitlines() == [
        "**ARPO** trains `small` on `ToolEnv-v0`.",
        "",
        "- model: `models/small`",
        "- task: `ToolEnv-v0`, task gsm8k, tools: python, search",
        "- forks: where P > 0.5, P = 0.5 + 0.2 dH, dH from the initial baseline, in the order `first_come`",
        "- command: `python train.py --seed 0`",
        "- commit: `2187257-dirty`",
        f"- results: `{folder}`",
        f"- look: `rllib-arpo show '{folder}'` draws its trees, with `--plots` its curves",
    ]


@pytest.mark.parametrize(("rollout", "forks"), [
    ({"branching": "never"}, "none"),
    ({"branching": "random", "random_fork_probability": 0.3}, "with probability 0.3, in the order `first_come`"),
    ({"branch_threshold": "auto"},
     "where dH is in the highest 25% of the last questions', P = 0.5 + 0.2 dH, dH from the initial baseline, in the "
     "order `first_come`"),
    ({"branching": "always"}, "at every node, in the order `first_come`"),
    ({"branching": "probability", "entropy_baseline": "running"},
     "with probability P, P = 0.5 + 0.2 dH, dH from the running baseline, in the order `first_come`"),
])  # fmt: skip
def test_what_forks(rollout, forks):
    lines = description("ARPO", config(**rollout), "python train.py").splitlines()
    # Nothing is known of a checkout and of a folder.
    assert lines[-2:] == [f"- forks: {forks}", "- command: `python train.py`"]


@pytest.mark.parametrize(
    "made", [{"factor": 1}, {"model_name_or_path": "m", "branching": "random"}, config() | {"model_name_or_path": None}]
)
def test_another_trainable_and_a_configuration_without_the_defaults_have_no_description(made):
    assert description("ARPO", made, "python train.py") is None


def test_the_command_line_can_be_repeated(monkeypatch):
    monkeypatch.setattr("sys.orig_argv", ["/venv/bin/python3", "-m", "pytest", "a b"])
    assert command_line() == "python3 -m pytest 'a b'"


def test_the_command_line_shows_no_secret(monkeypatch):
    arguments = ["--wandb-key", "1a2b", "--api-token=3c", "--max-tokens", "32", "--password", "4d", "last"]
    monkeypatch.setattr("sys.orig_argv", ["python", "train.py", *arguments])
    shown = "--wandb-key '***' '--api-token=***' --max-tokens 32 --password '***' last"
    assert command_line() == f"python train.py {shown}"


def test_the_description_shows_no_secret():
    made = config() | {"env_config": {"task": "gsm8k", "api_key": "abc", "judge_url": "http://me:abc@h", "qa": "f1"}}
    text = description("ARPO", made, "train.py --url http://me:abc@h", folder="s3://me:abc@bucket")
    assert "- task: `ToolEnv-v0`, task gsm8k, api_key ***, judge_url http://***@h, qa f1" in text.splitlines()
    assert "- command: `train.py --url http://***@h`" in text.splitlines() and "abc" not in text


def test_tags_name_versions_and_no_commit_outside_a_checkout(monkeypatch):
    tags = run_tags()
    assert tags["python_version"] == platform.python_version()
    assert tags["ray_version"] == metadata.version("ray")
    assert tags["torch_version"] == metadata.version("torch")
    assert tags["transformers_version"] == metadata.version("transformers")
    assert "mlflow.source.git.commit" not in tags


def test_tags_name_the_commit_of_a_checkout(workspace):
    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout

    git("init")
    (workspace / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "first")
    tags = run_tags()
    assert (tags["mlflow.source.git.commit"], tags["git_dirty"]) == (git("rev-parse", "HEAD").strip(), "false")
    (workspace / "file").write_text("2")
    assert run_tags()["git_dirty"] == "true"
