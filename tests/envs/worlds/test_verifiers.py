"""Tasks of verifiers as worlds, with a stand-in for the package, which tests/integration/test_served.py takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.rewards import FinishedPath
from rllib_arpo.envs.worlds import Call
from rllib_arpo.envs.worlds.copies import CopyChecks
from rllib_arpo.envs.worlds.registry import find_world
from rllib_arpo.envs.worlds.verifiers import write_rows
from tests.helpers import other_python
from tests.helpers.worlds import trunk_of

HELPERS = Path(other_python.__file__).parent
OPTIONS = {"taskset": "capitals", "python": sys.executable}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The capital of Norway?"}]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, from which the other Python imports the stand-in and a taskset."""
    own = "from verifiers.v1 import _call_state, discover_decorated, invoke, state_cls"
    for module in ("mcp/server", "utils/decorators", "state"):
        file = tmp_path / "verifiers" / "v1" / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(own)
    shutil.copy(HELPERS / "verifiers_stand_in.py", tmp_path / "verifiers" / "v1" / "__init__.py")
    shutil.copy(HELPERS / "capitals.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tasks_are_rows(folder):
    write_rows("rows.jsonl", "capitals", python=sys.executable, number=3, config={"number": 2})
    first, second = map(json.loads, Path("rows.jsonl").read_text().splitlines())
    assert first == {"prompt": ASKED, "system_prompt": None, "answer": "Oslo"}
    assert second["answer"] == "Rome"
    with pytest.raises(subprocess.CalledProcessError):
        write_rows("rows.jsonl", "nowhere", python=sys.executable, number=3)


async def test_the_set_up_of_shared_toolsets_belongs_to_the_start(folder):
    source = (folder / "capitals.py").read_text()
    (folder / "slow.py").write_text(source.replace("Words.number += 1", "import time\n        time.sleep(1.0)"))
    world = {"verifiers": {**OPTIONS, "taskset": "slow", "timeout_s": 0.8}}
    session = trunk_of(world, prompt=ASKED, answer="Oslo")
    assert (await session.act(Call("first", {"word": "Oslo"}))).text == "O of toolset 0"


async def test_a_task_has_its_tools_its_state_and_its_rewards(folder):
    trunk = trunk_of({"verifiers": OPTIONS}, prompt=ASKED, answer="Oslo")
    world = await trunk.ready()
    root = trunk.fork_root()
    found = await root.act(Call("atlas_look_up", {"country": "Norway"}))
    child = root.fork()
    wrong = await root.act(Call("atlas_look_up", {"country": "Mars"}))
    first = await child.act(Call("first", {"word": "Oslo", "count": 2}))
    question = trunk._question
    right = await root.score(FinishedPath(question, ("<a>", "<b>", "<think> Rome? </think> Oslo "), True))
    rome = await child.score(FinishedPath(question, ("<a>", "<b>", "Rome"), True))
    way = root.maker.fork_method
    await CopyChecks().check([root, child])
    for play in (trunk, root, child):
        await play.close()
    assert (trunk.opening, way) == ("", "fork")
    assert world.tools.keys() == {"first", "atlas_look_up"}
    assert world.tools["atlas_look_up"]["properties"] == {"country": {"title": "Country", "type": "string"}}
    assert world.tools["atlas_look_up"]["description"] == "The capital of a country."
    assert (found.text, first.text) == ("Oslo", "Os of toolset 1")
    assert (wrong.text[:28], wrong.status) == ("Error executing tool look_up", ToolStatus.ERROR)
    assert (right.reward, right.accuracy) == (1 + 0.25 / 3, 1.0)
    assert (rome.reward, rome.accuracy) == (0.25 / 2, 0.25 / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"taskset": "nowhere"}, "cannot be made (ModuleNotFoundError: No module named 'nowhere')."),
        ({"python": "/no/python"}, "far_verifiers.py:tasks in /no/python cannot be made (/no/python does not start"),
        ({"taskset": "boxed"}, "cannot be made (ValueError: the tasks of boxed need a container)."),
    ],
)
def test_a_taskset_that_cannot_be_played_is_one_sentence(folder, change, message):
    head = "class CapitalTask(vf.Task[CapitalData, Notes]):\n"
    source = (folder / "capitals.py").read_text()
    (folder / "boxed.py").write_text(source.replace(head, f"{head}    NEEDS_CONTAINER = True\n"))
    with pytest.raises(ValueError, match=r"^env_config\['world'\]: ") as raised:
        find_world({"verifiers": {**OPTIONS, **change}})
    assert message in str(raised.value)


def test_the_python_must_be_named(folder):
    with pytest.raises(ValueError, match=r"^env_config\['world'\]: verifiers: missing a required argument: 'python'"):
        find_world({"verifiers": {"taskset": "capitals"}})
