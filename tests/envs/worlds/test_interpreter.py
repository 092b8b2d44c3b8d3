"""Worlds in a process of another Python: kinds of worlds, ways of forking, and processes that die, hang or print."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from pathlib import Path

import pytest

from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.rewards import FinishedPath
from rllib_arpo.envs.worlds import far_side, interpreter
from rllib_arpo.envs.worlds.registry import find_world
from rllib_arpo.envs.worlds.session import WorldSession
from tests.helpers import worlds
from tests.helpers.worlds import QUESTION, trunk_of
from tests.helpers.worlds import texts as said

FINISHED = FinishedPath(QUESTION, ("2", "3"), True)


def far(name: str, **options) -> WorldSession:
    return trunk_of(worlds.far(name, **options))


async def test_replies_pay_the_world_scores_and_what_it_prints_is_not_seen(capfd):
    play = far("Adder")
    _, last = [await play.act(text) for text in ("22", "90")]
    score = await play.score(FINISHED)
    await play.close()
    assert (last.text, last.done, play.paid, score.reward, score.accuracy) == ("113", True, 1.0, 11.3, 1.0)
    assert capfd.readouterr() == ("", "")


async def test_steps_are_texts_as_in_gymnasium():
    play = far("Walk")
    first, last = await play.act("right"), await play.act("left")
    again, end = await play.act("left"), await play.score(FINISHED)
    assert [play.opening, first.text, last.text, again.text] == ["at 1", "at 2", "at 1", "at 0"]
    assert (again.done, end.accuracy) == (True, 0.75)


async def test_a_process_that_dies_is_started_again_and_what_was_done_is_repeated():
    lost = "The world was lost twice in one action (its process has died)."
    one, two = far("Adder").fork(), far("Adder").fork()
    found = [*await said(one, "2"), *await said(two, "4", "die", "1"), *await said(one, "1")]
    assert found == ["3", "5", lost, "6", "4"]


async def test_a_world_that_hangs_is_broken_and_its_process_is_replaced(monkeypatch):
    monkeypatch.setattr(interpreter, "GIVEN_UP_TIMEOUT_S", 0.2)
    one, two = far("Adder", timeout_s=1.0).fork(), far("Adder").fork()
    found = await said(two, "2")
    with pytest.raises(BrokenToolError, match=r"^FarWorld did not answer in 1 s\.$"):
        await one.act("hang")
    assert [*found, *await said(two, "3")] == ["3", "6"]


async def test_a_request_that_was_given_up_disturbs_no_other_and_is_ended_when_its_turn_comes(monkeypatch):
    monkeypatch.setattr(interpreter, "GIVEN_UP_TIMEOUT_S", 0.2)
    one, two, three = (far("Adder").fork() for _ in range(3))
    before = await said(one, "nap")
    await two.ready()
    nap = asyncio.create_task(said(one, "nap"))
    await asyncio.sleep(0.1)
    hang = asyncio.create_task(two.act("hang"))
    await asyncio.sleep(0.1)
    hang.cancel()
    assert await nap == before
    assert await said(three, "2") == ["3"]


@pytest.mark.slow
async def test_waiting_for_the_process_does_not_count_towards_the_time_limit():
    plays = [far("Adder", timeout_s=3.0).fork() for _ in range(8)]
    naps = await asyncio.gather(*(said(play, "nap") for play in plays))
    assert len({pid for [pid] in naps}) == 1


def test_a_process_that_starts_slowly_starts_again_whatever_the_time_limit(tmp_path, monkeypatch):
    slow = tmp_path / "slow.py"
    slow.write_text("import time\nfrom tests.helpers.far_worlds import Adder\ntime.sleep(1.0)\n")
    world = {f"{slow}:Adder": {"python": sys.executable, "timeout_s": 0.4}}
    with monkeypatch.context() as patched, pytest.raises(ValueError, match=r"made \(it has not begun in 0\.1 s\)\.$"):
        patched.setattr(interpreter, "START_TIMEOUT_S", 0.1)
        find_world(world)
    trunk = trunk_of(world)

    async def played():
        with pytest.raises(BrokenToolError, match=r"^FarWorld did not answer in 0\.4 s\.$"):
            await said(trunk.fork(), "die")
        for _ in range(20):
            with contextlib.suppress(BrokenToolError):
                return await said(trunk.fork(), "2")

    assert asyncio.run(played()) == ["3"]


async def test_the_world_of_a_fork_that_was_given_up_is_closed_over_there():
    trunk, other = (far("Adder", step=2) for _ in range(2))
    await trunk.ready()
    nap = asyncio.create_task(trunk.act("nap"))
    await asyncio.sleep(0.1)
    child = trunk.fork()
    await asyncio.sleep(0.1)
    await child.close()
    await nap
    await trunk.close()
    assert await said(other, "worlds") == ["1"]


async def test_a_bug_over_there_is_a_bug_here_with_its_traceback():
    with pytest.raises(RuntimeError, match=r"^KeyError: 'nothing there'\n") as raised:
        await far("Adder").act("bug")
    assert 'raise KeyError("nothing there")' in "".join(raised.value.__notes__)


def test_the_far_side_needs_only_the_standard_library():
    names = set(re.findall(r"^ *(?:import|from) (\w+)", Path(far_side.__file__).read_text(), re.MULTILINE))
    assert {"copy", "json"} <= names <= sys.stdlib_module_names
