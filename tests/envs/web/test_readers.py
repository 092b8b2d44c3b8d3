"""The life of the processes that read pages."""

import asyncio
import os
from pathlib import Path

import pytest

from rllib_arpo.envs.errors import BrokenToolError, ToolError
from rllib_arpo.envs.web import readers


def programs(monkeypatch, tmp_path, source: str) -> None:
    """Reader processes run `source`, after they have left a file with their number."""
    program = tmp_path / "reader.py"
    program.write_text(f"import os, pathlib; pathlib.Path({str(tmp_path)!r}, f'{{os.getpid()}}.pid').touch()\n{source}")
    monkeypatch.setattr(readers, "_PROGRAM", str(program))


def pids(folder: Path) -> list[int]:
    return [int(file.stem) for file in folder.glob("*.pid")]


async def ask() -> None:
    await readers._Readers().ask("read_page", {}, 60.0)


def test_a_process_that_is_not_waited_for_any_more_ends(monkeypatch, tmp_path):
    programs(monkeypatch, tmp_path, "import time; time.sleep(1000)")

    async def give_up():
        asking = asyncio.create_task(ask())
        async with asyncio.timeout(60.0):
            while not pids(tmp_path):
                await asyncio.sleep(0.02)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(give_up())
    (pid,) = pids(tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("source", ["raise ImportError('no such library')", "import time; time.sleep(1000)"])
def test_a_process_that_does_not_start_is_a_broken_tool(monkeypatch, tmp_path, source, capfd):
    programs(monkeypatch, tmp_path, source)
    monkeypatch.setattr(readers, "_START_TIMEOUT_S", 5.0)
    with pytest.raises(BrokenToolError, match="The process that reads pages does not start"):
        asyncio.run(ask())
    assert ("no such library" in capfd.readouterr().err) == ("library" in source)


def test_a_machine_without_processes_left_is_a_broken_tool(monkeypatch):
    async def refuse(*args, **kwargs):
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(BrokenToolError, match=r"does not start \(Resource temporarily unavailable\)"):
        asyncio.run(ask())


def test_what_a_process_dies_of_is_told(monkeypatch, tmp_path, capfd):
    programs(monkeypatch, tmp_path, "print('+', end='', flush=True); input(); raise KeyError('a bug')")
    with pytest.raises(ToolError, match="its reader died of it"):
        asyncio.run(ask())
    assert "KeyError: 'a bug'" in capfd.readouterr().err
