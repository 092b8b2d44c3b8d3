"""Runs a function in a process with fewer rights; lists processes, and waits for what they do."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path

NOBODY = 65534


def descendants(*, zombies: bool = False) -> set[int]:
    """The ids of all processes below this one; with `zombies` also of those that have ended and are not waited for."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended meanwhile
            continue
        if zombies or state != "Z":
            parents[int(stat.parent.name)] = int(parent)
    found, added = set(), {os.getpid()}
    while added:
        added = {pid for pid, parent in parents.items() if parent in added} - found
        found |= added
    return found


def eventually(condition: Callable[[], object], patience_s: float = 30.0) -> bool:
    """Whether the condition holds before the patience ends."""
    deadline = time.monotonic() + patience_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def as_ordinary_user(function: Callable, *args) -> None:
    """Runs the function in a forked process, which is nobody's where this one is root's; its failure fails here.

    Modules that the function imports must be imported already.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(function, args, sender))
    process.start()
    sender.close()
    try:
        failure = receiver.recv()
    except EOFError:
        failure = "The process died."
    process.join()
    assert failure is None, failure


def _run(function: Callable, args, sender) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    try:
        function(*args)
    except BaseException:
        sender.send(traceback.format_exc())
    else:
        sender.send(None)
