"""A run's record lies with its results and is the trees that it sampled."""

import pyarrow.parquet as pq
import pytest

from rllib_arpo.commands import run_command


def test_the_record_is_the_trees_of_the_run(scripted, tmp_path):
    algorithm = scripted.reporting(record_share=1.0).build_algo()
    algorithm._storage, algorithm._logdir = None, str(tmp_path)
    first = algorithm.train()
    # Root "0" is right in both questions, and root "1" is wrong.
    assert first["messages"]["0"].startswith(
        "sampled     accuracy 0.500  pass@2 1.000  any of M 1.000  with signal 1.000"
    )
    trees = [sampled.tree for sampled in algorithm.last_sampled]
    algorithm.evaluate()
    evaluated = [sampled.tree for sampled in algorithm.last_evaluation]
    algorithm.stop()
    folder = tmp_path / "trees"
    assert sorted(path.name for path in folder.iterdir()) == ["evaluation-00001.parquet", "iteration-00001.parquet"]
    rows = pq.read_table(folder / "iteration-00001.parquet").to_pylist()
    expected = [(tree.question_id, t.agent_id, turn.token_ids.tolist(), turn.entropies.tolist(), turn.times.started)
                for tree in trees for t in tree.trajectories for turn in t.turns]  # fmt: skip
    names = ("question_id", "agent_id", "token_ids", "entropies", "started_s")
    assert [tuple(row[name] for name in names) for row in rows if row["turn"] is not None] == expected
    # Root "0" is right, all others are wrong.
    assert {row["agent_id"] for row in rows if row["advantage"] > 0} == {"0"}
    assert all(row["trained"] for row in rows)
    held_out = pq.read_table(folder / "evaluation-00001.parquet").to_pylist()
    assert [row["question_id"] for row in held_out if row["turn"] == 0] == [tree.question_id for tree in evaluated]
    assert {(row["purpose"], row["trained"]) for row in held_out} == {("evaluation", False)}


@pytest.mark.slow
def test_a_record_a_cold_start_on_it_and_arpo_on_the_result(scripted, tmp_path, capsys):
    def trained(config, folder):
        algorithm = config.build_algo()
        algorithm._storage, algorithm._logdir = None, str(folder)
        result = algorithm.train()
        algorithm.stop()
        return result

    trained(scripted.reporting(record_share=1.0), tmp_path)
    tuned = str(tmp_path / "tuned")
    argv = ["--model", scripted.model_name_or_path, "--data", str(tmp_path / "trees"), "--output", tuned]
    assert run_command("cold-start", [*argv, "--best", "1", "--min-reward", "1", "--epochs", "1"]) == 0
    assert "2 trajectories of 2 questions" in capsys.readouterr().out
    again = scripted.copy(copy_frozen=False).language_model(model_name_or_path=tuned)
    result = trained(again, tmp_path / "again")
    assert result["learners"]["default_policy"]["grad_norm"] > 0
