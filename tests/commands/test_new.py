"""The environment that `rllib-arpo new` writes: its tests pass, and it trains."""

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.record.read import questions, record_files
from tests.helpers.chat_templates import QWEN25
from tests.helpers.models import byte_tokenizer, tiny_model


@pytest.mark.slow
def test_what_it_writes_runs(tmp_path):
    folder = tmp_path / "mine"
    assert run_command("new", [str(folder)]) == 0
    readme = (folder / "README.md").read_text()
    assert all(f"`{file.name}`" in readme for file in folder.iterdir() if file.name != "README.md")
    tiny_model(folder / "models" / "tiny")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = QWEN25
    tokenizer.save_pretrained(folder / "models" / "tiny")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, *command.split()], cwd=folder, env=environment, text=True, stdout=PIPE, stderr=PIPE
        )
        for command in ("-m pytest -q", "train.py --scripted --iterations 2 --model models/tiny")
    ]
    for process in processes:
        printed, errors = process.communicate()
        assert process.returncode == 0, printed + errors
    recorded = sorted(tmp_path.glob("ray_results/**/trees/iteration-*.parquet"))
    trees = [question.tree for file in record_files(recorded[0].parent) for question in questions(file)]
    returns = [set(tree.returns()) for tree in trees]
    assert len(recorded) == 2
    assert any(len(rewards) > 1 for rewards in returns)
    assert any(tree.forks() for tree in trees)
    lines = printed.splitlines()
    assert [line[:9] for line in lines if line.startswith("iter ")] == ["iter    1", "iter    2"]
    assert len(lines) < 60 and sum(line.startswith("evaluation") for line in lines) == 2
