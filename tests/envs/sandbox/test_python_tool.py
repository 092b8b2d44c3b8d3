import asyncio
import os
import time

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.sandbox.backends import LocalBackend
from rllib_arpo.envs.tools.python import PythonSession, PythonTool, program
from rllib_arpo.envs.tools.tool import ToolResult
from rllib_arpo.envs.worlds.world import Call
from tests.helpers.calls import call

OK, ERROR, TIMEOUT = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT
#: The same tool inside and outside the fence.
BOTH = pytest.mark.parametrize("unsafe", [False, True])


def within(session: PythonSession, argument: str) -> ToolResult:
    reply = asyncio.run(session.act(session.tool.as_call(session.tool.read(argument))))
    return ToolResult(reply.text, reply.status)


@BOTH
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(7 * 12)", ToolResult("84")),
        ("x = 3\nx + 1", ToolResult("4")),
        ("x = 3", ToolResult("(no output)")),
        ("exit()", ToolResult("(no output)")),
        ("print(1); exit(3)", ToolResult("1", ERROR)),
        ("1 +", ToolResult("Line 1: SyntaxError: invalid syntax", ERROR)),
        ("print(1); 1 / 0", ToolResult("1\nLine 1: ZeroDivisionError: division by zero", ERROR)),
        ("input()", ToolResult("Line 1: EOFError: EOF when reading a line", ERROR)),
        ("def f(): return f()\nf()", ToolResult("Line 1: RecursionError: maximum recursion depth exceeded", ERROR)),
        ("x = 'a' * 10**10", ToolResult("Line 1: MemoryError", ERROR)),
        ("import os; os.kill(os.getpid(), 9)", ToolResult("The program was killed by signal 9.", ERROR)),
        ("import numpy as np; print(np.linalg.det(2 * np.eye(3)).round())", ToolResult("8.0")),
        ("async def f(): return 5\nimport asyncio; asyncio.run(f())", ToolResult("5")),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n  x: 'int' = 1\nP()", ToolResult("P(x=1)")),
        ("open('a', 'w').write('text'); print(open('/tmp/a').read())", ToolResult("text")),
        ("import sys; sys.exit('no solution')", ToolResult("no solution", ERROR)),
        ("x = 5\ndef f(): return x\nprint(f(), f'{x!r}', '{}')", ToolResult("5 5 {}")),
    ],
)
def test_python_runs_a_program(code, expected, unsafe):
    code = code.replace("/tmp/a", "a")
    assert call(PythonTool(unsafe=unsafe), code) == expected


@BOTH
@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
def test_python_stops_what_takes_too_long_and_shows_what_was_printed(code, unsafe):
    tool = PythonTool(time_limit_s=1.0, unsafe=unsafe)
    told = call(tool, f"print('so far')\n{code}")
    assert told == ToolResult("so far\nTime limit of 1 s exceeded.", TIMEOUT)


def test_descendants_outside_the_fence_end_with_their_call():
    code = "import os, time\npid = os.fork()\nif not pid: time.sleep(1000)\nprint(pid)"
    pid = int(call(PythonTool(unsafe=True), code).text)
    with pytest.raises(ProcessLookupError):
        for _ in range(1000):
            os.kill(pid, 0)
            time.sleep(0.02)


@BOTH
def test_python_stops_endless_output(unsafe):
    result = call(PythonTool(unsafe=unsafe), "while True: print('x' * 1000)")
    assert result.status == ERROR
    assert result.text.endswith("the program was stopped.")


@BOTH
def test_calls_share_nothing(monkeypatch, unsafe):
    monkeypatch.setenv("SOME_SECRET", "hunter2")
    tool = PythonTool(packages=("numpy",), unsafe=unsafe)
    LocalBackend(packages=tool.packages, unsafe=unsafe).server().close()
    assert call(tool, "x = 1; open('file', 'w').write('a')").status == OK
    assert call(tool, "x").text == "Line 1: NameError: name 'x' is not defined"
    assert call(tool, "open('file')").text.startswith("Line 1: FileNotFoundError")
    assert call(tool, "import os; 'SOME_SECRET' in os.environ").text == "False"


@BOTH
def test_random_numbers_are_the_same_in_every_call(unsafe):
    code = "import random, numpy\n(random.random(), numpy.random.rand(), hash('text'))"
    first, second = (call(PythonTool(unsafe=unsafe), code) for _ in range(2))
    assert first == second
    assert first.status == OK


def test_a_program_outside_the_fence_that_kills_its_supervisor_harms_only_itself():
    tool = PythonTool(unsafe=True)
    assert call(tool, "import os; os.kill(os.getppid(), 9)") == ToolResult("The Python process died.", ERROR)
    assert call(tool, "print(2)") == ToolResult("2")


def test_a_session_keeps_what_succeeds_and_a_fork_goes_its_own_way():
    tool = PythonTool(session=True)
    session = tool.make_world()
    assert within(session, "x = 41\nprint('hello')").text == "hello"
    code = "def f(): return x + 1\nopen('note', 'w').write('kept'); print('made', flush=True)"
    assert within(session, code).text == "made"
    child = asyncio.run(session.fork())
    within(child, "x += 10")
    assert within(session, "x = 0; 1 / 0").status == ERROR
    assert within(session, "f(), open('note').read()").text == "(42, 'kept')"
    assert within(child, "f()").text == "52"
    assert len(session.history) == 3
    assert PythonTool().make_world is None


@BOTH
def test_a_session_shows_what_the_new_call_writes_and_no_more(unsafe):
    session = PythonTool(session=True, unsafe=unsafe).make_world()
    assert within(session, "import os, sys; sys.stderr.write('a'); print('b', file=sys.stderr)").text == "ab"
    assert within(session, "sys.stderr.close(); print('c')").text == "c"
    assert within(session, "os.write(1, b'd') + os.write(2, b'e')").text == "de2"


def test_the_time_limit_of_a_session_is_the_new_calls():
    tool = PythonTool(session=True, time_limit_s=0.8)
    session = PythonSession(tool, ["import time; time.sleep(0.5)", "time.sleep(0.5)"])
    assert within(session, "print('in time')").text == "in time"
    assert within(session, "while True: pass") == ToolResult("Time limit of 0.8 s exceeded.", TIMEOUT)


@pytest.mark.parametrize("earlier", ["1 / 0", "import os; os._exit(0)", "import os; os.kill(os.getpid(), 9)"])
def test_a_session_that_cannot_be_repeated_starts_anew(earlier):
    tool = PythonTool(session=True)
    session = PythonSession(tool, ["x = 1", earlier])
    result = within(session, "x")
    assert result.status == ERROR
    assert result.text.endswith("could not be repeated. The next call starts anew.")
    assert session.history == []
    assert within(session, "'x' in globals()").text == "False"


#: The package of the arithmetic task generates its questions with their answers.
REGENERATES = """
import importlib, os, sys
folders = [root for root, *_ in os.walk(sys.base_prefix + "/lib") if root.endswith("-packages")]
sys.path += folders
for name in ("rllib_arpo.envs.tasks", "datasets", "torch"):
    try:
        importlib.import_module(name)
        print("BREACH", name)
    except ImportError:
        pass
print(sorted(name for folder in folders for name in os.listdir(folder)))
"""


def test_no_package_is_visible_that_is_not_listed():
    assert call(PythonTool(packages=(), time_limit_s=120.0), REGENERATES) == ToolResult("[]")
    code = "import os; print(*sorted(name for name in os.listdir('/packages') if name.isidentifier()))"
    tool = PythonTool(packages=("sympy",))
    assert call(tool, code).text == "__pycache__ mpmath sympy"


def test_a_package_comes_with_what_it_requires():
    code = "import pandas as p, scipy.linalg as s\nint(p.Series([1]).sum()), int(s.det([[2]])), p.Timestamp(0).year"
    assert call(PythonTool(time_limit_s=120.0), code).text == "(1, 2, 1970)"


def test_the_first_line_keeps_its_place_above_the_others():
    code = "print()\nprint('   a  b')\nprint('0  1  2')"
    assert call(PythonTool(), code).text == "   a  b\n0  1  2"


def test_a_program_ends_with_its_threads_as_in_python():
    begin = "import threading, time\ndef work():\n    time.sleep(0.1)\n    print('late')\n"
    assert call(PythonTool(), f"{begin}threading.Thread(target=work).start()").text == "late"
    pool = "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor().submit(print, 'pool')\nNone"
    assert call(PythonTool(), pool).text == "pool"


async def test_a_session_repeats_threads_and_keeps_pools():
    world = PythonTool(session=True).make_world()
    begin = "import time\nfrom concurrent.futures import ThreadPoolExecutor\nfrom threading import Thread\n"
    late = "found, pool = [], ThreadPoolExecutor()\npool.submit(int).result()\n"
    late += "Thread(target=lambda: (time.sleep(0.1), found.append(5))).start()"
    codes = (begin + late, "pool.submit(len, found).result()", "ThreadPoolExecutor().submit(sum, found).result()")
    assert [(await world.act(Call("python", {"code": code}))).text for code in codes] == ["(no output)", "1", "5"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("```Python3 \nprint(1)\n```", "print(1)"),
        ("\n    x = 1\n    print(x)\n", "x = 1\nprint(x)"),
    ],
)
def test_program_takes_off_fence_and_indentation(text, code):
    assert program(text) == code
