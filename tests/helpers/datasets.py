"""Files of data sets in all their layouts and formats, and what a task asks of them."""

import json
from pathlib import Path

from rllib_arpo.envs.tasks import DatasetTask
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
    "qa": (
        [
            {"question": "Q?", "answer": "A", "answers": ["A", "B"]},
            {"question": "Q?", "answers": ["A", "B"]},
            {"id": "7", "question": "Q?", "answer": ["A", "B"]},
        ],
        ("A", "B"),
    ),
    "rows": (
        [
            {"prompt": "Q?", "answer": "A", "answers": ["A", "B"]},
            {"prompt": [{"role": "user", "content": "Q?"}], "answer": ["A", "B"]},
        ],
        ("A", "B"),
    ),
    "arpo_mix": ([row("Q?", "A")], ("A",)),
    "arpo_deepsearch": ([row("Q?", "A")], ("A",)),
    "dapo": ([row("Q?", "A") | {"ability": "MATH"}], ("A",)),
    "search_r1": ([{"id": "train_0", "question": "Q?", "golden_answers": ["A", "B"]}], ("A", "B")),
    "triviaqa": (
        [{"question": "Q?", "question_id": "tc_1", "answer": {"value": "A", "aliases": ["A", "B"]}}],
        ("A", "B"),
    ),
    "squad": ([{"id": "5733", "question": "Q?", "answers": {"text": ["A", "A"], "answer_start": [1, 7]}}], ("A",)),
    "messages": (
        [
            {
                "messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "\\boxed{A}"}],
                "ability": "qa",
            }
        ],
        ("A",),
    ),
    "parquet": (
        [row("Q?", "A<|answer_split|>B"), {"question": "Q?", "answer": ["A", "B"], "ability": "qa"}],
        ("A", "B"),
    ),
}


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
