"""The folder of results: whole questions, under one set of settings."""

from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from rllib_arpo.core.tree import StopReason
from rllib_arpo.evaluation.results import ResultFolder, ResultsError, first_difference
from rllib_arpo.record.question import QuestionFacts, RecordedQuestion
from rllib_arpo.record.schema import VERSION_KEY
from tests.helpers.trees import endings, make_trajectory, make_tree, make_turn


def arm(task: str = "squares", **settings) -> SimpleNamespace:
    model = SimpleNamespace(name="/models/m")
    return SimpleNamespace(
        model=model, style="tools", task=task, label="m tools", name=f"m tools {task}", settings=lambda: settings
    )


def question(number: int, stop_reason: str = "answer", **settings) -> RecordedQuestion:
    ends = ["answer", stop_reason]
    trajectories = [make_trajectory(str(i), [make_turn([66])], stop_reason=StopReason(e)) for i, e in enumerate(ends)]
    tree = make_tree([65], trajectories, f"q{number}")
    return RecordedQuestion.decoded(tree, QuestionFacts("benchmark", 0, number, 0.5), None, settings)


def test_questions_come_back_in_the_order_of_their_numbers(tmp_path):
    results = ResultFolder(tmp_path)
    first, second = results.arm(arm()), results.arm(arm("cubes"))
    for number in (7, 0):
        first.add(question(number, seed=3))
    assert (first.numbers(), second.numbers()) == ({0, 7}, set())
    assert [one.task for one in results.arms()] == ["squares", "cubes"]
    results = ResultFolder(tmp_path)
    found = list(results.arm(arm()).questions())
    assert [(one.tree.question_id, one.settings) for one in found] == [
        ("q0", {"seed": 3}),
        ("q7", {"seed": 3}),
    ]


@pytest.mark.parametrize(
    ("stop_reason", "asked_again"),
    [("broken_tool", True), ("engine_failure", True), ("deadline", False), ("token_limit", False)],
)
def test_what_an_outage_ended_is_asked_again(tmp_path, stop_reason, asked_again):
    results = ResultFolder(tmp_path)
    place = results.arm(arm())
    place.add(question(0, stop_reason))
    place.add(question(1))
    assert place.numbers() == ({1} if asked_again else {0, 1})
    place.add(question(0))
    assert place.numbers() == {0, 1}
    assert [endings(one.tree) for one in place.questions()] == [("answer", "answer")] * 2


def test_a_file_that_a_kill_left_unfinished_is_not_read(tmp_path):
    results = ResultFolder(tmp_path)
    place = results.arm(arm())
    place.add(question(0))
    (place.folder / "trees" / "question-00000001.parquet.partial").write_text("the half of it")
    assert place.numbers() == {0}


def test_other_settings_are_refused_once_there_are_results(tmp_path):
    results = ResultFolder(tmp_path)
    results.keep({"samples": 1, "limits": (1, 2), "engine_kwargs": {"hf_token": "abc"}})
    assert "abc" not in (tmp_path / "settings.json").read_text()
    results.keep({"samples": 2, "limits": (1, 2)})
    results.arm(arm(env_config={})).add(question(0))
    results.keep({"samples": 2, "limits": [1, 2]})
    with pytest.raises(ResultsError) as error:
        results.keep({"samples": 3, "limits": (1, 2)})
    assert str(error.value) == (
        f"{tmp_path} has results with samples=2, not 3: keep the setting, or name another --output."
    )
    with pytest.raises(ResultsError, match="results of m tools squares with env_config/few_shot=null, not 2"):
        results.arm(arm(env_config={"few_shot": 2}))
    hidden = results.arm(arm("cubes", env_config={"answer_key": "right"}, data={"/a/api_key": "1f"}))
    hidden.add(question(0))
    assert "right" not in (hidden.folder / "settings.json").read_text()
    for key, of_data, message in (
        ("left", "1f", r'env_config/answer_key="\*\*\* \w{4}", not "\*\*\* \w{4}":'),
        ("right", "2f", 'data//a/api_key="1f", not "2f":'),
    ):
        with pytest.raises(ResultsError, match=message):
            results.arm(arm("cubes", env_config={"answer_key": key}, data={"/a/api_key": of_data}))


def test_what_is_not_of_an_evaluation_stays_as_it_is(tmp_path):
    files = {".vscode/settings.json": "{} // mine", "03-mine/settings.json": '{"a": 1}', "lock": "mine"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    results = ResultFolder(tmp_path)
    results.keep({})
    assert results.arm(arm()).folder.name == "04-m-tools-squares"
    assert [one.task for one in results.arms()] == ["squares"]
    assert {name: (tmp_path / name).read_text() for name in files} == files


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("settings.json", b'{"samples": 1}', "not the settings of an evaluation; name another --output."),
        ("settings.json", b"[]", "not the settings of an evaluation; name another --output."),
        ("settings.json", None, "missing or damaged ([Errno 2] No such file or directory"),
        ("settings.json", b"\xff", "missing or damaged ('utf-8' codec"),
        ("01-m-tools-squares/settings.json", b"", "missing or damaged (Expecting value"),
        ("01-m-tools-squares/trees/question-00000000.parquet", b"PAR1", "not a parquet file ("),
        ("01-m-tools-squares/trees/question-00000000.parquet", 3, "a record of version 3; this command reads version"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, message):
    results = ResultFolder(tmp_path)
    results.keep({})
    results.arm(arm()).add(question(0))
    file = tmp_path / name
    if content is None:
        file.unlink()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        table = pq.read_table(file)
        pq.write_table(table.replace_schema_metadata(table.schema.metadata | {VERSION_KEY: str(content)}), file)
    before = file.read_bytes() if file.exists() else None
    results = ResultFolder(tmp_path)
    with pytest.raises(ResultsError) as error:
        results.keep({})
        results.arm(arm()).numbers()
    assert str(error.value).startswith(f"{file}: {message}")
    assert (file.read_bytes() if file.exists() else None) == before


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {}, ("a", "1", "null")),
        ({"b": 2, "a": {"x": [1]}}, {"b": 3, "a": {"x": [2]}}, ("a/x", "[1]", "[2]")),
        ({"a": {"x": 1}}, {"a": 5}, ("a", '{"x": 1}', "5")),
    ],
)
def test_the_first_difference(old, new, expected):
    assert first_difference(old, new) == expected


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file: not a folder that can be written"):
        ResultFolder(tmp_path / "file")
    with pytest.raises(ValueError, match="the path is not UTF-8"):
        ResultFolder(tmp_path / "\udce9")
