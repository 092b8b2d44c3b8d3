"""A killed evaluation continues where it stopped, and ends with the results of an undisturbed one."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time

import pyarrow.parquet as pq

from rllib_arpo.commands import evaluate, run_command
from rllib_arpo.evaluation.store import DATABASE, ResultStore
from tests.envs.rewards.judge_server import JudgeServer, honest
from tests.helpers.models import byte_tokenizer
from tests.helpers.parquet import parquet
from tests.helpers.parquet import row as parquet_row

NUM_QUESTIONS = 150
CONFIG = json.dumps({"arithmetic": {"num_test_questions": NUM_QUESTIONS}})


def num_answered(folder) -> int:
    """Questions in the store of another process."""
    if not (folder / DATABASE).exists():
        return 0
    connection = sqlite3.connect(f"file:{folder / DATABASE}?mode=ro", uri=True, timeout=30)
    try:
        return connection.execute("SELECT COUNT(*) FROM questions").fetchone()[0]
    except sqlite3.OperationalError:  # Its tables are not made yet.
        return 0
    finally:
        connection.close()


def test_a_killed_evaluation_resumes_without_repeating_or_losing_a_question(arguments, tmp_path, monkeypatch):
    killed = tmp_path / "killed"
    command = arguments("--samples", "2", "--no-mlflow", "--questions-in-flight", "3", env_config=CONFIG)
    with_output = [*command, "--output", str(killed)]
    process = subprocess.Popen(
        [sys.executable, "-m", "rllib_arpo", "evaluate", *with_output],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while num_answered(killed) < 10 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    errors = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, errors
    with ResultStore(killed) as store:
        (arm,) = [name for (name,) in store._connection.execute("SELECT DISTINCT arm FROM questions")]
        before = {record.number: record for record, _commit in store.records(arm)}
    assert 10 <= len(before) < NUM_QUESTIONS
    assert not (killed / evaluate.TRANSCRIPTS).exists()

    asked = []
    ask = evaluate.ask

    def recorded_ask(arm, numbers, *args, **kwargs):
        asked.extend(numbers)
        return ask(arm, numbers, *args, **kwargs)

    monkeypatch.setattr(evaluate, "ask", recorded_ask)
    assert run_command("evaluate", with_output) == 0
    assert asked == sorted(set(range(NUM_QUESTIONS)) - before.keys())
    with ResultStore(killed) as store:
        after = {record.number: record for record, _commit in store.records(arm)}
    assert {number: after[number] for number in before} == before

    assert run_command("evaluate", [*command, "--output", str(tmp_path / "whole")]) == 0
    # Everything except the times.
    left_out = ["seconds", "turns"]
    resumed, whole = (pq.read_table(tmp_path / name / evaluate.TRANSCRIPTS) for name in ("killed", "whole"))
    assert resumed.num_rows == 2 * NUM_QUESTIONS
    assert resumed.drop_columns(left_out).equals(whole.drop_columns(left_out))
    texts = [[(turn["text"], turn["response"]) for turn in turns] for turns in resumed["turns"].to_pylist()]
    assert texts == [[(turn["text"], turn["response"]) for turn in turns] for turns in whole["turns"].to_pylist()]
    # A third time there is nothing to ask.
    asked.clear()
    assert run_command("evaluate", with_output) == 0
    assert asked == []


def test_questions_that_a_broken_judge_ended_are_asked_again(arguments, tmp_path, capsys):
    is_up = []
    server = JudgeServer(lambda message: honest(message) if is_up else 400)
    judge = {"base_url": server.base_url, "model": "m", "max_attempts": 1}
    rows = [parquet_row(f"Question {i}?", "red") | {"ability": "qa"} for i in range(3)]
    replies = [byte_tokenizer().encode("<answer> \\boxed{red} </answer>", add_special_tokens=False)]
    command = arguments(
        "--no-mlflow",
        tasks="parquet",
        engine_kwargs=json.dumps({"vocab_size": 259, "replies": replies}),
        env_config=json.dumps({"parquet": {"tools": {}, "qa_metric": "judge", "judge": judge}}),
        data=f"parquet={parquet(tmp_path / 'questions.parquet', rows)}",
    )

    def endings() -> list[tuple[str, bool]]:
        found = pq.read_table(tmp_path / "out" / evaluate.TRANSCRIPTS).to_pylist()
        return [(sample["stop_reason"], sample["correct"]) for sample in found]

    assert run_command("evaluate", command) == 0
    assert endings() == [("broken_tool", False)] * 3
    assert "Warning: some trajectories were not finished" in capsys.readouterr().out
    is_up.append(True)
    assert run_command("evaluate", command) == 0
    assert endings() == [("answer", True)] * 3
    assert "Warning" not in capsys.readouterr().out
    server.close()
