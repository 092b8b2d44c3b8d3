"""The folder of results: whole questions, under one set of settings, by one process at a time."""

from types import SimpleNamespace

import pytest

from rllib_arpo.core.tree import StopReason
from rllib_arpo.evaluation.results import ResultFolder, SettingsError, first_difference
from rllib_arpo.record.rows import QuestionFacts, question_rows
from tests.helpers.trees import make_trajectory, make_tree, make_turn


def arm(task: str = "squares", **settings) -> SimpleNamespace:
    model = SimpleNamespace(name="/models/m")
    return SimpleNamespace(
        model=model, style="tools", task=task, label="m tools", name=f"m tools {task}", settings=lambda: settings
    )


def rows(number: int, stop_reason: str = "answer") -> list[dict]:
    ends = ["answer", stop_reason]
    trajectories = [make_trajectory(str(i), [make_turn([66])], stop_reason=StopReason(e)) for i, e in enumerate(ends)]
    tree = make_tree([65], trajectories, f"q{number}")
    return question_rows(tree, QuestionFacts("benchmark", 0, number, 0.5), None)


def test_questions_come_back_in_the_order_of_their_numbers(tmp_path):
    with ResultFolder(tmp_path) as results:
        first, second = results.arm(arm()), results.arm(arm("cubes"))
        for number in (7, 0):
            first.add(number, rows(number), {"seed": 3})
        assert (first.numbers(), second.numbers()) == ({0, 7}, set())
        assert [one.task for one in results.arms()] == ["squares", "cubes"]
    with ResultFolder(tmp_path) as results:
        found = list(results.arm(arm()).questions())
    assert [(question.row["question_id"], question.settings) for question in found] == [
        ("q0", {"seed": 3}),
        ("q7", {"seed": 3}),
    ]


@pytest.mark.parametrize(
    ("stop_reason", "asked_again"),
    [("broken_tool", True), ("engine_failure", True), ("deadline", False), ("token_limit", False)],
)
def test_what_an_outage_ended_is_asked_again(tmp_path, stop_reason, asked_again):
    with ResultFolder(tmp_path) as results:
        place = results.arm(arm())
        place.add(0, rows(0, stop_reason), {})
        place.add(1, rows(1), {})
        assert place.numbers() == ({1} if asked_again else {0, 1})
        place.add(0, rows(0), {})
        assert place.numbers() == {0, 1}
        assert [question.stop_reasons() for question in place.questions()] == [["answer"], ["answer"]]


def test_a_file_that_a_kill_left_unfinished_is_not_read(tmp_path):
    with ResultFolder(tmp_path) as results:
        place = results.arm(arm())
        place.add(0, rows(0), {})
        (place.folder / "trees" / "question-00000001.parquet.partial").write_text("the half of it")
        assert place.numbers() == {0}


def test_other_settings_are_refused_once_there_are_results(tmp_path):
    with ResultFolder(tmp_path) as results:
        results.claim({"samples": 1, "limits": (1, 2), "engine_kwargs": {"hf_token": "abc"}})
        assert "abc" not in (tmp_path / "settings.json").read_text()
        results.claim({"samples": 2, "limits": (1, 2)})
        results.arm(arm(env_config={})).add(0, rows(0), {})
        results.claim({"samples": 2, "limits": [1, 2]})
        with pytest.raises(SettingsError) as error:
            results.claim({"samples": 3, "limits": (1, 2)})
        assert str(error.value) == (
            f"{tmp_path} has results with samples=2, not 3: keep the setting, or name another --output."
        )
        with pytest.raises(SettingsError, match="results of m tools squares with env_config/few_shot=null, not 2"):
            results.arm(arm(env_config={"few_shot": 2}))
        results.arm(arm("cubes", env_config={"few_shot": 2}))


def test_other_settings_replace_the_results_where_the_command_says_so(tmp_path):
    with ResultFolder(tmp_path, replaces=True) as results:
        results.claim({"samples": 1})
        results.arm(arm()).add(0, rows(0), {})
        assert results.arm(arm(few_shot=2)).numbers() == set()
        results.arm(arm(few_shot=2)).add(0, rows(0), {})
        results.claim({"samples": 2})
        assert results.arms() == []


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


def test_one_process_at_a_time(tmp_path):
    with ResultFolder(tmp_path), pytest.raises(ValueError, match="another evaluation is writing here"):
        ResultFolder(tmp_path)
    ResultFolder(tmp_path).close()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file: not a folder that can be written"):
        ResultFolder(tmp_path / "file")
