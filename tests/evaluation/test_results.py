"""The folder of results: whole questions of an arm, under one set of settings."""

from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from rllib_arpo.core.tree import StopReason
from rllib_arpo.errors import CommandError
from rllib_arpo.evaluation.plan import EvaluationSettings
from rllib_arpo.evaluation.results import StoredArm, stored_arm
from rllib_arpo.record.question import QuestionFacts, RecordedQuestion
from rllib_arpo.record.schema import VERSION_KEY
from tests.helpers.trees import endings, make_trajectory, make_tree, make_turn


def place(folder, task: str = "squares", samples: int = 1, engine_kwargs: dict | None = None, **settings) -> StoredArm:
    model = SimpleNamespace(name="/models/m")
    arm = SimpleNamespace(model=model, task=task, name=f"m {task}", settings=lambda: settings)
    return stored_arm(folder, arm, EvaluationSettings(samples=samples, engine_kwargs=engine_kwargs or {}))


def question(number: int, stop_reason: str = "answer", **settings) -> RecordedQuestion:
    ends = ["answer", stop_reason]
    trajectories = [make_trajectory(str(i), [make_turn([66])], stop_reason=StopReason(e)) for i, e in enumerate(ends)]
    tree = make_tree([65], trajectories, f"q{number}")
    return RecordedQuestion.decoded(tree, QuestionFacts("benchmark", 0, number, 0.5), None, settings)


def test_questions_come_back_in_the_order_of_their_numbers(tmp_path):
    first, second = place(tmp_path), place(tmp_path, "cubes")
    for number in (7, 0):
        first.add(question(number, seed=3))
    assert (first.numbers(), second.numbers()) == ({0, 7}, set())
    found = list(place(tmp_path).questions())
    assert [(one.tree.question_id, one.settings) for one in found] == [("q0", {"seed": 3}), ("q7", {"seed": 3})]
    # A kill left it.
    (first.folder / "trees" / "question-00000001.parquet.partial").write_text("the half of it")
    assert first.numbers() == {0, 7}


@pytest.mark.parametrize(
    ("stop_reason", "asked_again"),
    [("broken_tool", True), ("engine_failure", True), ("deadline", False), ("token_limit", False)],
)
def test_what_an_outage_ended_is_asked_again(tmp_path, stop_reason, asked_again):
    stored = place(tmp_path)
    stored.add(question(0, stop_reason))
    stored.add(question(1))
    assert stored.numbers() == ({1} if asked_again else {0, 1})
    stored.add(question(0))
    assert stored.numbers() == {0, 1}
    assert [endings(one.tree) for one in stored.questions()] == [("answer", "answer")] * 2


def test_other_settings_are_refused_once_there_are_results(tmp_path):
    place(tmp_path, samples=1, engine_kwargs={"hf_token": "abc"})
    hidden = place(tmp_path, samples=2, env_config={"answer_key": "right"}, data={"/a/api_key": "1f"})
    hidden.add(question(0))
    assert "right" not in (hidden.folder / "settings.json").read_text()
    assert place(tmp_path, samples=2, env_config={"answer_key": "right"}, data={"/a/api_key": "1f"}) == hidden
    for samples, key, of_data, message in (
        (3, "right", "1f", "samples=2, not 3: use the old setting, or name another --output."),
        (2, "left", "1f", r'env_config/answer_key="\*\*\* \w{4}", not "\*\*\* \w{4}":'),
        (2, "right", "2f", 'data//a/api_key="1f", not "2f":'),
    ):
        with pytest.raises(CommandError, match=f"^{tmp_path} has results of m squares with {message}"):
            place(tmp_path, samples=samples, env_config={"answer_key": key}, data={"/a/api_key": of_data})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("settings.json", None, "is missing or damaged ([Errno 2] No such file or directory"),
        ("settings.json", b"\xff", "is missing or damaged ('utf-8' codec"),
        ("settings.json", b"", "is missing or damaged (Expecting value"),
        ("trees/question-00000000.parquet", b"PAR1", "is not a parquet file ("),
        ("trees/question-00000000.parquet", 3, "has version 3 of the record; this package reads version"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, message):
    stored = place(tmp_path)
    stored.add(question(0))
    file = stored.folder / name
    if content is None:
        file.unlink()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        table = pq.read_table(file)
        pq.write_table(table.replace_schema_metadata(table.schema.metadata | {VERSION_KEY: str(content)}), file)
    before = file.read_bytes() if file.exists() else None
    with pytest.raises(CommandError) as error:
        place(tmp_path).numbers()
    assert str(error.value).startswith(f"{file}: {message}")
    assert (file.read_bytes() if file.exists() else None) == before
