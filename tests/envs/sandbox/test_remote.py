"""SandboxFusion against a stand-in on this machine: real HTTP, real Python behind it, no service of others."""

import asyncio
import subprocess
import sys

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.tools.python import PythonTool
from rllib_arpo.envs.tools.tool import ToolResult
from tests.helpers.calls import call
from tests.helpers.web_server import Reply, Request, json_service

OK, ERROR, TIMEOUT = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT


def run_python(request: Request) -> Reply:
    """What SandboxFusion's `/run_code` answers, from its `CommandRunResult`."""
    command, limit = [sys.executable, "-c", request.body["code"]], request.body["run_timeout"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as late:
        out = (late.stdout or b"").decode()
        result = {"status": "TimeLimitExceeded", "stdout": out, "stderr": ""}
        return Reply({"status": "Failed", "run_result": result})
    result = {"status": "Finished", "return_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    return Reply({"status": "Failed" if done.returncode else "Success", "message": "", "run_result": result})


@pytest.fixture
def service():
    with json_service(run_python) as service:
        yield service


@pytest.fixture
def make(service, monkeypatch):
    """make(...) -> the tool, whose service is the stand-in."""
    monkeypatch.setattr("rllib_arpo.envs.tools.tool.MAX_RETRY_WAIT_S", 0.01)
    options = {"backend": "sandbox_fusion", "backend_options": {"url": f"{service.url}/"}}
    return lambda **fields: PythonTool(**options, **fields)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(7 * 12)", ToolResult("84")),
        ("x = 1\n\nx / 0", ToolResult("Line 3: ZeroDivisionError: division by zero", ERROR)),
        ("'{x}' + '\\n\"\"\"'", ToolResult('\'{x}\\n"""\'')),
        ("import os; os.kill(os.getpid(), 9)", ToolResult("The program was killed by signal 9.", ERROR)),
        ("print('so far')\nwhile True: pass", ToolResult("so far\nTime limit of 2 s exceeded.", TIMEOUT)),
    ],
)
def test_a_remote_call_shows_what_a_local_one_does(make, service, code, expected):
    assert call(make(time_limit_s=2.0, memory_mb=99), code) == expected
    (request,) = service.requests
    sent = [request.body[key] for key in ("language", "run_timeout", "memory_limit_MB")]
    assert (request.path, sent) == ("/run_code", ["python", 2.0, 99])


def test_a_remote_session(make):
    tool = make(session=True)
    session = tool.make_world()

    def said(code: str) -> str:
        return asyncio.run(session.act(tool.as_call(code))).text

    assert [said("x = 20; print('made')"), said("x + 1")] == ["made", "21"]
    assert said("import random, sys; y = random.random(); print(y, file=sys.stderr)") == said("y")
    session.history.append("1 / 0")
    assert said("x").endswith("could not be repeated. The next call starts anew.")
    assert session.history == []


ODD = {"run_result": {"status": "Finished", "return_code": None}}


@pytest.mark.parametrize("oddity", [Reply({"message": "busy"}, 503), Reply(b"<html>"), Reply(ODD)])
def test_a_service_that_is_busy_or_not_understood_is_asked_again(make, service, oddity):
    service.answer = lambda request: oddity if len(service.requests) == 1 else run_python(request)
    assert call(make(), "1 + 1") == ToolResult("2")
    assert len(service.requests) == 2


def test_a_service_that_refuses_or_is_not_there_is_an_observation(make, service):
    service.answer = lambda request: Reply({}, 403)
    result = call(make(max_attempts=1), "1 + 1")
    assert result.status == ERROR and "403" in result.text
    tool = PythonTool(backend="sandbox_fusion", backend_options={"url": "http://127.0.0.1:9"}, max_attempts=1)
    assert call(tool, "1").status == ERROR
