import base64
import itertools
import json
import logging
from dataclasses import fields
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.tasks import TASKS, DatasetTask, rows
from rllib_arpo.envs.tasks.specs import SPECS
from tests.helpers.parquet import parquet, row

BOXED = "Then \\boxed{1}. So it is $\\boxed{\\frac{1}{\\{2\\}}}$."
#: Task -> rows in the layouts in which the data set is found, and the answers of all of them.
LAYOUTS = {
    "gsm8k": ([{"question": "Q?", "answer": "It is 9 * 2 = <<9*2=18>>18.\n#### 1,018", "idx": 0}], ("1,018",)),
    "math": (
        [
            {"problem": "Q?", "level": "Level 1", "type": "Algebra", "solution": BOXED},
            {"question": "Q?", "answer": "\\frac{1}{\\{2\\}}"},
        ],
        ("\\frac{1}{\\{2\\}}",),
    ),
    "math500": (
        [
            {"problem": "Q?", "solution": "\\boxed{4}", "answer": "3", "unique_id": "a/1.json"},
            {"question": "Q?", "answer": "3"},
        ],
        ("3",),
    ),
    "aime24": (
        [{"id": 60, "problem": "Q?", "solution": BOXED, "answer": "204"}, {"problem": "Q?", "answer": 204}],
        ("204",),
    ),
    "aime25": ([{"problem": "Q?", "answer": "70", "id": "0"}], ("70",)),
    "hotpotqa": (
        [{"question": "Q?", "answer": ["A"]}, {"id": "5a", "question": "Q?", "answer": "A", "type": "bridge"}],
        ("A",),
    ),
    "2wiki": (
        [{"question": "Q?", "answer": ["A", "B"]}, {"id": "1", "question": "Q?", "golden_answers": ["A", "B"]}],
        ("A", "B"),
    ),
    "musique": (
        [
            {"question": "Q?", "answer": ["A", "B"]},
            {"id": "2hop", "question": "Q?", "answer": "A", "answer_aliases": ["B"]},
        ],
        ("A", "B"),
    ),
    "bamboogle": (
        [{"question": "Q?", "answer": ["A", " A ", ""]}, {"question": "Q?", "golden_answers": ["A"]}],
        ("A",),
    ),
    "simpleqa": ([{"problem": "Q?", "answer": "A", "metadata": "{}"}], ("A",)),
    "webwalker": (
        [{"question": "Q?", "answer": "A"}, {"Question": "Q?", "Answer": "A", "Root_Url": "http://a"}],
        ("A",),
    ),
    "gaia": (
        [
            {"id": 1, "task_id": "t1", "Question": "Q?", "answer": "A", "Level": 1},
            {"task_id": "t1", "Question": "Q?", "Final answer": "A", "Level": "1", "file_name": ""},
        ],
        ("A",),
    ),
    "hle": ([{"id": "66", "question": "Q?", "answer": "A", "image": "", "answer_type": "exactMatch"}], ("A",)),
    "xbench": ([{"question": "Q?", "answer": ["A"]}, {"id": "1", "prompt": "Q?", "answer": "A"}], ("A",)),
    "arpo_mix": ([row("Q?", "A")], ("A",)),
    "arpo_deepsearch": ([row("Q?", "A")], ("A",)),
    "parquet": ([row("Q?", "A<|answer_split|>B")], ("A", "B")),
}
DATA = next(
    (folder / "shared" / "data" for folder in Path(__file__).parents if (folder / "shared" / "data").is_dir()), None
)


def json_lines(path, records) -> str:
    Path(path).write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def json_list(path, records) -> str:
    Path(path).write_text(json.dumps(records))
    return str(path)


WRITERS = {"parquet": parquet, "jsonl": json_lines, "json": json_list}


def gsm8k(n: int) -> list[dict]:
    return [{"question": f"Question {i}?", "answer": f"#### {i}"} for i in range(n)]


def asked(task: DatasetTask, numbers=None) -> list[int]:
    numbers = range(task.num_questions) if numbers is None else numbers
    return [int(task.question(n).answers[0]) for n in numbers]


def test_every_data_set_has_a_layout_here():
    assert set(SPECS) == set(LAYOUTS)
    assert set(TASKS) == {*SPECS, "arithmetic", "catalogue", "reasoning_gym"}


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_row_of_every_layout(tmp_path, name, ending):
    layouts, answers = LAYOUTS[name]
    for i, record in enumerate(layouts):
        path = WRITERS[ending](tmp_path / f"test{i}.{ending}", [record])
        task = DatasetTask(task=name, path=path, split="test")
        question = task.question(0)
        assert (task.num_questions, question.messages, question.answers) == (1, (("user", "Q?"),), answers)
        assert question.source == f"{path}, row 0"
        assert question.ability == ("math" if "python" in task.tools[:1] else question.ability)
        own = record.get(SPECS[name].row_id)
        assert question.question_id == f"test{i}/0" + (f" ({own})" if own is not None else "")


def test_abilities():
    assert {name for name, spec in SPECS.items() if spec.ability == "math"} == {
        "gsm8k",
        "math",
        "math500",
        "aime24",
        "aime25",
    }
    assert {name for name, spec in SPECS.items() if spec.ability is None} == {"arpo_mix", "arpo_deepsearch", "parquet"}


def test_xbench_as_it_is_published(tmp_path):
    def encrypted(text: str, key: str) -> str:
        data, secret = text.encode(), key.encode()
        return base64.b64encode(bytes(byte ^ secret[i % len(secret)] for i, byte in enumerate(data))).decode()

    key = "canary-éà-123"
    record = {"id": "4", "prompt": encrypted("谁写的?", key), "answer": encrypted("鲁迅", key), "canary": key}
    task = DatasetTask(task="xbench", path=json_lines(tmp_path / "x.jsonl", [record]), split="test")
    question = task.question(0)
    assert (question.messages, question.answers) == ((("user", "谁写的?"),), ("鲁迅",))
    path = parquet(tmp_path / "plain.parquet", [{**record, "prompt": "Who?!"}])
    with pytest.raises(DataError, match=r"plain.parquet, row 0: `prompt` is not encrypted with the row's `canary`\.$"):
        DatasetTask(task="xbench", path=path).question(0)


@pytest.mark.parametrize(
    ("name", "column", "what"), [("hle", "image", "an image"), ("gaia", "file_name", "an attached file")]
)
@pytest.mark.parametrize("ending", WRITERS)
def test_rows_that_cannot_be_asked_are_skipped_and_counted(tmp_path, caplog, name, column, what, ending):
    base = LAYOUTS[name][0][0]
    records = [{**base, "answer": str(i), column: "x" if i % 3 == 0 else ""} for i in range(7)]
    path = WRITERS[ending](tmp_path / f"mixed.{ending}", records)
    with caplog.at_level(logging.WARNING):
        task = DatasetTask(task=name, path=path, split="test")
    assert asked(task) == [1, 2, 4, 5]
    assert task.question(2).source == f"{path}, row 4"
    message = f"{path}: 3 of 7 rows are skipped: they have {what}."
    # Counted once in a process, however many tasks read the file.
    assert asked(DatasetTask(task=name, path=path, split="test", limit=3)) == [1, 2, 4]
    assert caplog.messages == [message]
    with pytest.raises(DataError, match="no rows"):
        DatasetTask(task=name, path=WRITERS[ending](tmp_path / f"only.{ending}", records[:1]))


SURROGATE = "'utf-8' codec can't encode character '\\ud800' in position 1: surrogates not allowed"


@pytest.mark.parametrize("ending", ["jsonl", "json"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "Q?"}', "no `answer`."),
        ('{"answer": "#### 1"}', "no `question` or `problem`."),
        ('{"question": null, "answer": "#### 1"}', "no `question` or `problem`."),
        ('{"question": " ", "answer": "#### 1"}', "`question` has no text."),
        ('{"question": ["Q?"], "answer": "#### 1"}', "`question` has no text."),
        ('{"question": "Q?", "answer": "18"}', "`answer` does not end with '#### answer'."),
        ('{"question": "Q?", "answer": 18}', "`answer` does not end with '#### answer'."),
        ("[1]", "not a JSON object."),
        ('{"question": "Q\\ud800?", "answer": "#### 1"}', f"not valid Unicode ({SURROGATE})."),
        ('{"question": "Q?", "answer": "#### \\ud800"}', f"not valid Unicode ({SURROGATE.replace(' 1:', ' 2:')})."),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, ending, text, message):
    good = [json.dumps(record) for record in gsm8k(3)]
    lines = [*good, text]
    path = tmp_path / f"bad.{ending}"
    path.write_text("\n".join(lines) if ending == "jsonl" else f"[{', '.join(lines)}]")
    task = DatasetTask(task="gsm8k", path=str(path), split="test")
    assert asked(task, range(3)) == [0, 1, 2]
    with pytest.raises(DataError) as error:
        task.question(3)
    assert str(error.value) == f"{path}, row 3: {message}"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("math500", {"unique_id": "a\ud800"}, f"not valid Unicode ({SURROGATE})."),
        ("math", {"solution": "It is 5."}, "`solution` has no \\boxed{}."),
        ("math", {"solution": "\\boxed{5"}, "`solution` has a \\boxed{ that is not closed."),
        ("hotpotqa", {"answer": []}, "no answer (`answer` is empty)."),
        ("hotpotqa", {"answer": {"a": 1}}, "`answer` must be a text, a number, or a list of them."),
        ("hotpotqa", {"answer": True}, "`answer` must be a text, a number, or a list of them."),
        ("arpo_mix", {"prompt": "Q?"}, "`prompt` is not a list of {role, content}."),
        ("arpo_mix", {"prompt": [{"role": "user"}]}, "`prompt` has a message whose role or content is no text."),
        ("arpo_mix", {"reward_model": "A"}, "`reward_model` is not an object with a `ground_truth`."),
        ("arpo_mix", {"ability": "art"}, "`ability` must be 'math' or 'qa', not 'art'."),
    ],
)
def test_other_rows_that_do_not_fit(tmp_path, name, changes, message):
    path = json_lines(tmp_path / "bad.jsonl", [{**LAYOUTS[name][0][0], **changes}])
    with pytest.raises(DataError) as error:
        DatasetTask(task=name, path=path).question(0)
    assert str(error.value) == f"{path}, row 0: {message}"


def test_bad_lines_and_files_are_named(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'\n{"question": "Q?", "answer": "#### 1"}\n\n  \n{"question": \n\xff\xfe\n')
    task = DatasetTask(task="gsm8k", path=str(path), split="test")
    assert task.num_questions == 3 and task.question(0).source == f"{path}, row 1"
    with pytest.raises(DataError, match=r"lines.jsonl, row 4: not JSON \("):
        task.question(1)
    with pytest.raises(DataError, match=r"lines.jsonl, row 5: not JSON \("):
        task.question(2)
    for content, message in (
        (b"[1, ", r"not JSON \("),
        (b"[" * 100_000, r"not JSON \("),
        (b"[" + b"1" * 5000 + b"]", r"not JSON \("),
        (b"", "not JSON"),
        (b"[]", "no rows"),
        (b'"text"', "a .json file holds a list of objects, or one object a line"),
        (
            b'{\n "question": "Q?",\n "answer": "#### 1"\n}',
            "a .json file holds a list of objects, or one object a line",
        ),
    ):
        (tmp_path / "list.json").write_bytes(content)
        with pytest.raises(DataError, match=rf"list.json: {message}"):
            DatasetTask(task="gsm8k", path=str(tmp_path / "list.json"))
    with pytest.raises(DataError, match=r"data.csv: questions are read from .parquet, .json, .jsonl files\.$"):
        DatasetTask(task="gsm8k", path="data.csv")
    with pytest.raises(DataError, match=r"none.json: no such file\.$"):
        DatasetTask(task="gsm8k", path=str(tmp_path / "none.json"))
    with pytest.raises(DataError, match=r"no column 'question' or 'problem' \(there are: Q, answer\)\.$"):
        DatasetTask(task="gsm8k", path=parquet(tmp_path / "columns.parquet", [{"Q": "Q?", "answer": "#### 1"}]))


def test_rows_that_cannot_be_decoded_are_named(tmp_path):
    path = tmp_path / "deep.jsonl"
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(DataError, match=r"deep.jsonl, row 0: not JSON \("):
        DatasetTask(task="gsm8k", path=str(path)).question(0)
    path = tmp_path / "bytes.parquet"
    texts = pyarrow.array([b"Q?", b"\xff"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"question": texts, "answer": ["#### 1"] * 2}), path)
    with pytest.raises(DataError, match=r"bytes.parquet, row 1: not UTF-8 \("):
        DatasetTask(task="gsm8k", path=str(path), split="test").question(1)


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, ending):
    path = tmp_path / f"memory.{ending}"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=rf"memory.{ending}: not readable \(.*Input/output error\)\.$"):
        DatasetTask(task="gsm8k", path=str(path))


@pytest.mark.parametrize("separators", ["[,]", " \n "])
def test_json_with_a_byte_order_mark(tmp_path, separators):
    begin, between, end = separators
    text = begin + between.join(map(json.dumps, gsm8k(4))) + end
    path = tmp_path / "marked.json"
    path.write_text(text, encoding="utf-8-sig")
    assert asked(DatasetTask(task="gsm8k", path=str(path), split="test")) == [0, 1, 2, 3]


def test_json_lines_may_be_called_json(tmp_path):
    path = json_lines(tmp_path / "lines.json", gsm8k(4))
    assert asked(DatasetTask(task="gsm8k", path=path, split="test")) == [0, 1, 2, 3]


def test_json_lines_are_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "LINES_PER_BLOCK", 4)
    path = Path(json_lines(tmp_path / "lines.jsonl", gsm8k(10)))
    path.write_text(path.read_text().replace("\n", "\n\n"))
    test = DatasetTask(task="gsm8k", path=str(path), split="test")
    assert asked(test) == list(range(10))
    assert [test.question(n).source for n in (4, 9)] == [f"{path}, row {line}" for line in (8, 18)]
    epoch = asked(DatasetTask(task="gsm8k", path=str(path)))
    assert sorted(epoch) == list(range(10)) and epoch != list(range(10))
    assert sum(a // 4 != b // 4 for a, b in itertools.pairwise(epoch)) == 2


def test_a_list_of_files(tmp_path):
    (tmp_path / "b").mkdir()
    first, second = (tmp_path / "test.jsonl", tmp_path / "b" / "test.parquet")
    task = DatasetTask(task="gsm8k", path=[json_lines(first, gsm8k(2)), parquet(second, gsm8k(3))], split="test")
    assert asked(task) == [0, 1, 0, 1, 2]
    assert [task.question(n).question_id for n in (1, 4)] == [f"{first}/1", f"{second}/2"]


def test_the_order_depends_on_seed_and_epoch_alone(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", gsm8k(30))
    task = DatasetTask(task="gsm8k", path=path, seed=3)
    order = asked(task, range(60))
    assert sorted(order[:30]) == sorted(order[30:]) == list(range(30)) and order[:30] != order[30:]
    assert asked(DatasetTask(task="gsm8k", path=path, seed=3), range(59, -1, -1)) == order[::-1]
    assert asked(DatasetTask(task="gsm8k", path=path, seed=4), range(60)) != order


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"limit": 3}, [0, 1, 2]),
        ({"limit": 99}, list(range(10))),
        ({"subset": (2, 5)}, [2, 3, 4]),
        ({"subset": [[8, 99], [0, 2], [1, 3]]}, [0, 1, 2, 8, 9]),
        ({"subset": (2, 9), "limit": 2}, [2, 3]),
    ],
)
def test_a_part_of_the_rows(tmp_path, monkeypatch, keys, expected):
    monkeypatch.setattr(rows, "LINES_PER_BLOCK", 4)
    path = json_lines(tmp_path / "a.jsonl", gsm8k(10))
    assert asked(DatasetTask(task="gsm8k", path=path, split="test", **keys)) == expected
    assert sorted(asked(DatasetTask(task="gsm8k", path=path, **keys))) == expected


def test_one_file_is_divided_once_and_for_all(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", gsm8k(50))
    keys = {"task": "gsm8k", "path": path, "train_fraction": 0.8}
    train, test = asked(DatasetTask(**keys)), asked(DatasetTask(**keys, split="test"))
    assert (len(train), len(test)) == (40, 10)
    assert sorted(train + test) == list(range(50)) and test == sorted(test) != list(range(40, 50))
    assert asked(DatasetTask(**keys, split="test", seed=9)) == test


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"few_shot": 3}, r"env_config\['few_shot'\] must be from 0 to 2, not 3"),
        ({"limit": 0}, r"env_config\['limit'\] must be at least 1, not 0"),
        ({"subset": (3, 3)}, r"env_config\['subset'\] must be \(begin, end\)"),
        ({"subset": [[1, 2, 3]]}, r"env_config\['subset'\] must be \(begin, end\)"),
        ({"subset": (50, 60)}, "no rows"),
        ({"train_fraction": 1.0}, r"env_config\['train_fraction'\] must be between 0 and 1, not 1.0"),
        ({"split": "valid"}, "split must be 'train' or 'test', not 'valid'"),
        ({"hub_id": "openai/gsm8k"}, r"env_config\['path'\] and env_config\['hub_...'\] exclude each other"),
    ],
)
def test_a_wrong_key_is_named(tmp_path, keys, message):
    with pytest.raises(ValueError, match=message):
        DatasetTask(task="gsm8k", path=json_lines(tmp_path / "a.jsonl", gsm8k(10)), **keys)


def test_worked_examples_are_those_of_the_questions_ability(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", [row(), {**row(), "ability": "qa"}])
    task = DatasetTask(task="arpo_mix", path=path, split="test", few_shot=2)
    math, qa = (task.question(n).shots for n in (0, 1))
    assert [len(math), len(qa)] == [2, 2]
    assert {call.tool for shot in math for call in shot.calls} == {"python"}
    assert {call.tool for shot in qa for call in shot.calls} == {"search"}
    assert task.question(0).shots == math and DatasetTask(task="arpo_mix", path=path).question(0).shots == ()


def test_no_key_of_a_task_is_a_key_of_the_environment():
    from rllib_arpo.envs.env_config import ToolEnvConfig

    own = {f.name for f in fields(ToolEnvConfig)}
    assert {f.name for task in TASKS.values() for f in fields(task)} & own == {"task"}


@pytest.mark.parametrize(
    ("name", "file", "count", "answers"),
    [
        ("gsm8k", "benchmarks/gsm8k/test.jsonl", 1319, ("18",)),
        ("math500", "benchmarks/math500/test.jsonl", 500, ("\\left( 3, \\frac{\\pi}{2} \\right)",)),
        ("hotpotqa", "benchmarks/hotpotqa/test.jsonl", 200, ("Frank Lowy",)),
        ("2wiki", "benchmarks/2wiki/test.jsonl", 200, None),
        ("arpo_mix", "arpo/train_10k.parquet", 10_000, ("3\\sqrt{3} - 6",)),
        ("arpo_mix", "arpo/valid.parquet", 180, ("Eleanor Of Lancaster",)),
    ],
)
def test_all_rows_of_the_real_files_fit(name, file, count, answers):
    if DATA is None or not (DATA / file).is_file():
        pytest.skip(f"The real data is not here: no shared/data/{file} beside the project.")
    task = DatasetTask(task=name, path=str(DATA / file), split="test")
    assert task.num_questions == count
    assert answers in (None, task.question(0).answers)
    questions = [task.question(n) for n in range(min(count, 2000))]
    assert len({question.question_id for question in questions}) == len(questions)
