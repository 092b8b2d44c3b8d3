"""Tasks of verifiers as worlds, with the package itself, in its own interpreter."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.rewards import FinishedPath
from rllib_arpo.envs.worlds import Call
from rllib_arpo.envs.worlds.registry import find_world
from rllib_arpo.envs.worlds.session import CopyChecks
from rllib_arpo.envs.worlds.verifiers import write_rows
from tests.helpers import other_python
from tests.helpers.other_python import python_with
from tests.helpers.worlds import trunk_of

pytestmark = [pytest.mark.packages, pytest.mark.timeout(1800)]
CAPITALS = Path(other_python.__file__).with_name("capitals.py")
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The capital of Norway?"}]


@pytest.fixture(scope="module")
def python() -> str:
    return python_with("verifiers-0.4", "verifiers==0.4.0")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, from which the other Python imports tasksets."""
    shutil.copy(CAPITALS, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tasks_are_rows(folder, python):
    write_rows("rows.jsonl", "capitals", python=python, number=3, config={"number": 2})
    first, second = map(json.loads, Path("rows.jsonl").read_text().splitlines())
    assert (first["prompt"], first["answer"], second["answer"]) == (ASKED, "Oslo", "Rome")
    with pytest.raises(subprocess.CalledProcessError):
        write_rows("rows.jsonl", "nowhere", python=python, number=3)


async def test_the_set_up_of_shared_toolsets_belongs_to_the_start(folder, python):
    source = (folder / "capitals.py").read_text()
    (folder / "slow.py").write_text(source.replace("Words.number += 1", "import time\n        time.sleep(1.0)"))
    world = {"verifiers": {"taskset": "slow", "python": python, "timeout_s": 0.8}}
    session = trunk_of(world, prompt=ASKED, answer="Oslo")
    assert (await session.act(Call("first", {"word": "Oslo"}))).text == "O of toolset 0"


async def test_a_task_has_its_tools_its_state_and_its_rewards(folder, python):
    trunk = trunk_of({"verifiers": {"taskset": "capitals", "python": python}}, prompt=ASKED, answer="Oslo")
    world = await trunk.ready()
    root = trunk.fork_root()
    found = await root.act(Call("atlas_look_up", {"country": "Norway"}))
    child = root.fork()
    wrong = await root.act(Call("atlas_look_up", {"country": "Mars"}))
    first = await child.act(Call("first", {"word": "Oslo", "count": 2}))
    question = trunk._question
    right = await root.score(FinishedPath(question, ("<a>", "<b>", "<think> Rome? </think> Oslo "), True))
    rome = await child.score(FinishedPath(question, ("<a>", "<b>", "Rome"), True))
    assert (trunk.opening, root.maker.fork_method) == ("", "fork")
    await CopyChecks().check([root, child])
    for play in (trunk, root, child):
        await play.close()
    assert world.tools.keys() == {"first", "atlas_look_up"}
    assert world.tools["atlas_look_up"]["properties"]["country"]["type"] == "string"
    assert world.tools["atlas_look_up"]["description"] == "The capital of a country."
    assert (found.text, first.text) == ("Oslo", "Os of toolset 1")
    assert (wrong.text[:28], wrong.status) == ("Error executing tool look_up", ToolStatus.ERROR)
    assert (right.reward, right.accuracy) == (1 + 0.25 / 3, 1.0)
    assert (rome.reward, rome.accuracy) == (0.25 / 2, 0.25 / 2)


@pytest.mark.parametrize(
    ("taskset", "message"),
    [
        ("nowhere", "cannot be made (ModuleNotFoundError: taskset 'nowhere' not found"),
        ("boxed", "cannot be made (ValueError: the tasks of boxed need a container)."),
    ],
)
def test_a_taskset_that_cannot_be_played_is_one_sentence(folder, python, taskset, message):
    head = "class CapitalTask(vf.Task[CapitalData, Notes]):\n"
    source = (folder / "capitals.py").read_text()
    (folder / "boxed.py").write_text(source.replace(head, f"{head}    NEEDS_CONTAINER = True\n"))
    with pytest.raises(ValueError, match=r"^env_config\['world'\]: ") as raised:
        find_world({"verifiers": {"taskset": taskset, "python": python}})
    assert message in str(raised.value)
