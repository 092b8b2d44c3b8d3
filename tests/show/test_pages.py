"""The command show: which pages it writes, and what is wrong in one sentence."""

import base64
import hashlib
import html
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rllib_arpo.commands import main
from rllib_arpo.record.schema import SCHEMA, SETTINGS_KEY, VERSION_KEY
from tests.helpers.approved import assert_approved
from tests.record.trees import HELPED, TREE
from tests.show.conftest import write_record

TEXTS = Path(__file__).with_name("pages.txt")
CUPS = "lamps & <b>cups</b>/2"


def show(folder: Path, *arguments: object) -> list[str]:
    """The names of the pages that the command writes."""
    assert main(["show", *map(str, arguments), "--output", str(folder)]) == 0
    return sorted(path.name for path in folder.iterdir())


def text_of(page: Path, between: str = " ") -> str:
    """What a page says, without its markup, scripts and styles."""
    body = re.sub(r"<(script|style)>.*?</\1>", "", page.read_text(), flags=re.DOTALL)
    pieces = (" ".join(html.unescape(piece).split()) for piece in re.split(r"<[^>]+>", body))
    return between.join(filter(None, pieces))


def test_a_run_has_a_page_for_each_question_and_an_index(record, tmp_path, capsys):
    cups = "lamps_b_cups_b_2"
    assert show(tmp_path, record) == [
        "evaluation-00000-lamps.html",
        f"evaluation-00000-{cups}.html",
        "evaluation-00003-lamps.html",
        f"evaluation-00003-{cups}.html",
        "index.html",
        "training-00001-lamps.html",
        f"training-00001-{cups}.html",
    ]
    assert capsys.readouterr().out == f"{tmp_path}/index.html and 6 pages: open it in a browser.\n"
    index = text_of(tmp_path / "index.html")
    assert f"{CUPS} training, iteration 1 +0.06 +1.00 4 1 +0.250 2.5 search answer, deadline, engine_failure" in index
    page = (tmp_path / "index.html").read_text()
    assert "<b>" not in page
    # Trained trees come before evaluations.
    links = re.findall(r'href="(\w+)-(\d+)-lamps\.html"', page)
    assert links == [("training", "00001"), ("evaluation", "00000"), ("evaluation", "00003")]


def test_the_index_begins_with_the_questions_that_differ_most(model_folder, tmp_path, capsys):
    """All trajectories of "alike" earn nothing."""
    unpaid = [replace(one, turns=tuple(replace(turn, reward=0.0) for turn in one.turns)) for one in TREE.trajectories]
    trees = [replace(TREE, question_id="alike", trajectories=tuple(unpaid)), replace(TREE, question_id="different")]
    write_record(tmp_path / "run", model_folder, trees)
    show(tmp_path / "pages", tmp_path / "run")
    assert capsys.readouterr().out == f"{tmp_path}/pages/index.html and 6 pages: open it in a browser.\n"
    index = (tmp_path / "pages" / "index.html").read_text()
    assert re.findall(r'href="training-00001-(\w+)\.html"', index) == ["different", "alike"]


def test_what_pages_say_is_in_the_file(record, tmp_path, model_folder):
    """A trained question with a fork and a top-up, and one in which the model reads new contexts."""
    write_record(tmp_path / "run", model_folder, [HELPED])
    show(tmp_path / "lamps", record / "trees" / "iteration-00001.parquet", "--question", "lamps")
    show(tmp_path / "helped", tmp_path / "run" / "trees" / "iteration-00001.parquet")
    pages = [tmp_path / name / f"training-00001-{name}.html" for name in ("lamps", "helped")]
    found = "".join(f"##### {page.name}\n{text_of(page, chr(10))}\n" for page in pages)
    assert_approved(TEXTS, found)
    # The first two tokens have an entropy, and so a shade.
    shaded = re.findall(r'<span class="s\d" title="([\d.]+)">([^<]*)</span>', pages[0].read_text())
    assert shaded[:2] == [("0.50", "&lt;"), ("1.00", "s")]


def test_the_limit_keeps_the_last_pages(record, tmp_path):
    assert show(tmp_path, record, "--question", "lamps", "--limit", 2) == [
        "evaluation-00003-lamps.html",
        "index.html",
        "training-00001-lamps.html",
    ]


def strangers_record(record: Path, folder: Path, **values: object) -> Path:
    """The training record of `record` with these values in all rows, in `folder`."""
    table = pq.read_table(record / "trees" / "iteration-00001.parquet", filters=[("question_id", "=", "lamps")])
    for name, value in values.items():
        column = pa.array([value] * len(table), SCHEMA.field(name).type)
        table = table.set_column(SCHEMA.names.index(name), SCHEMA.field(name), column)
    pq.write_table(table, folder / "stranger.parquet")
    return folder / "stranger.parquet"


@pytest.mark.parametrize(
    ("values", "page"),
    [
        ({"purpose": "../../x"}, ".._.._x-00001-lamps.html"),
        ({"purpose": "/tmp/x"}, "_tmp_x-00001-lamps.html"),
        ({"question_id": "\0/../é\n" + "x" * 500}, f"training-00001-_.._é_{'x' * 98}.html"),
        ({"purpose": "é" * 500}, f"{'é' * 60}.html"),
    ],
)
def test_what_a_record_says_names_a_page_in_the_folder(record, tmp_path, values, page):
    assert show(tmp_path / "pages", strangers_record(record, tmp_path, **values)) == [page]


def test_a_prompt_without_a_text_is_shown_as_its_tokens(record, tmp_path):
    [page] = show(tmp_path / "pages", strangers_record(record, tmp_path, prompt=None))
    assert f"{len(TREE.prompt)} tokens {' '.join(map(str, TREE.prompt))} Tree" in text_of(tmp_path / "pages" / page)


@pytest.mark.parametrize("values", [{"parent": "9"}, {"parent": "0"}, {"inherited_turns": -1}, {"inherited_turns": 7}])
def test_a_fork_that_cannot_be_is_named(record, tmp_path, capsys, values):
    stranger = strangers_record(record, tmp_path, **values)
    assert main(["show", str(stranger), "--output", str(tmp_path / "pages")]) == 2
    assert re.fullmatch(
        r"error: Question 'lamps': trajectory '0' cannot be a fork of \S+ after turn -?\d\.\n",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize("name", ["index.html", "training-00001-lamps.html"])
def test_a_page_allows_its_own_script_and_style_alone(record, tmp_path, name):
    show(tmp_path, record)
    page = (tmp_path / name).read_text()
    policy = re.search(r'Security-Policy"\s+content="([^"]*)"', page)[1]
    style, script = (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for _, text in re.findall(r"<(style|script)>(.*?)</\1>", page, re.DOTALL)
    )
    assert policy == f"default-src 'none'; style-src {style}; script-src {script}; img-src data:"
    assert not re.search(r"<[^>]* (style|on\w+)=", page)


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["{run}", "--limit", "0"], "--limit 0: must be at least 1."),
    (["{run}/other"], "{run}/other: is neither a parquet file of a record nor a folder that has trees/*.parquet."),
    (["{run}", "--question", "lamp"],
     "{run}: the record does not have the question 'lamp'; its last one is '" + CUPS + "'."),
])  # fmt: skip
def test_mistakes(record, tmp_path, capsys, arguments, sentence):
    filled = [argument.replace("{run}", str(record)) for argument in arguments]
    assert main(["show", *filled, "--output", str(tmp_path / "pages")]) == 2
    assert capsys.readouterr().err == f"error: {sentence.replace('{run}', str(record))}\n"
    assert not (tmp_path / "pages").exists()


FIELDS = list(SCHEMA)


@pytest.mark.parametrize(("metadata", "fields", "sentence"), [
    ({}, FIELDS, "is not a record of trees: its metadata lacks rllib_arpo.record.version."),
    ({VERSION_KEY: b"1"}, FIELDS, "has version 1 of the record; this package reads version 6."),
    ({VERSION_KEY: b"6"}, FIELDS[1:], "lacks the column 'purpose'."),
    ({VERSION_KEY: b"6"}, [pa.field("purpose", pa.int32()), *FIELDS[1:]],
     "the column 'purpose' must be string and is not."),
    ({VERSION_KEY: b"6"}, FIELDS, "the settings in its metadata are missing or cannot be read."),
    ({VERSION_KEY: b"6", SETTINGS_KEY: b"{"}, FIELDS, "the settings in its metadata are missing or cannot be read."),
])  # fmt: skip
def test_other_files_are_refused(tmp_path, capsys, metadata, fields, sentence):
    path = tmp_path / "other.parquet"
    pq.write_table(pa.Table.from_pylist([], schema=pa.schema(fields, metadata=metadata)), path)
    assert main(["show", str(path), "--output", str(tmp_path / "pages")]) == 2
    assert capsys.readouterr().err == f"error: {path}: {sentence}\n"
