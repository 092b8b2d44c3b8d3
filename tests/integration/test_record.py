"""A run's record lies with its results and is the trees that it sampled."""

import pyarrow.parquet as pq


def test_the_record_is_the_trees_of_the_run(scripted, tmp_path):
    algorithm = scripted.reporting(record_share=1.0).build_algo()
    algorithm._storage, algorithm._logdir = None, str(tmp_path)
    algorithm.train()
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
