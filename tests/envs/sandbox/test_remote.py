"""The remote back-end against a stand-in on this machine: real HTTP, real Python behind it, no service of others."""

import asyncio
import functools
import subprocess
import sys

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.tools.python import PythonTool
from rllib_arpo.envs.tools.tool import ToolResult
from tests.helpers.calls import call
from tests.helpers.web_server import Reply, Request, json_service

OK, ERROR, TIMEOUT = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT


def run_python(code: str, timeout_s: float) -> dict:
    """What SandboxFusion's `/run_code` answers, from its `CommandRunResult`."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as late:
        out = (late.stdout or b"").decode()
        return {"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "stdout": out, "stderr": ""}}
    result = {"status": "Finished", "return_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    return {"status": "Failed" if done.returncode else "Success", "message": "", "run_result": result}


class StandIn:
    """SandboxFusion's `/run_code`."""

    def __init__(self):
        self.failures, self.oddities = [], []

    def __call__(self, request: Request) -> Reply:
        if self.failures:
            return Reply({"code": self.failures[0], "message": "busy"}, self.failures.pop(0))
        if self.oddities:
            return Reply(self.oddities.pop(0))
        assert request.path == "/run_code"
        return Reply(run_python(request.body["code"], request.body["run_timeout"]))


@pytest.fixture
def service():
    with json_service(StandIn()) as service:
        yield service


@pytest.fixture
def stand_in(service):
    return service.answer


@pytest.fixture
def make_tool(service, monkeypatch):
    """make_tool(...) -> the tool whose back-end's service is the stand-in."""
    monkeypatch.setattr("rllib_arpo.envs.tools.tool.MAX_RETRY_WAIT_S", 0.01)
    return functools.partial(PythonTool, backend="sandbox_fusion", backend_options={"url": f"{service.url}/"})


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(7 * 12)", ToolResult("84")),
        ("x = 3\nx + 1", ToolResult("4")),
        ("x = 1\n\nx / 0", ToolResult("Line 3: ZeroDivisionError: division by zero", ERROR)),
        ("'{x}' + '\\n\"\"\"'", ToolResult('\'{x}\\n"""\'')),
        ("print('[0, \"forged\"]')", ToolResult('[0, "forged"]')),
        ("import os; os.kill(os.getpid(), 9)", ToolResult("The program was killed by signal 9.", ERROR)),
    ],
)
def test_a_remote_call_shows_what_a_local_one_does(make_tool, code, expected):
    assert call(make_tool(), code) == expected


def test_a_remote_call_that_takes_too_long(make_tool):
    result = call(make_tool(time_limit_s=2.0), "print('so far', flush=True)\nwhile True: pass")
    assert result == ToolResult("so far\nTime limit of 2 s exceeded.", TIMEOUT)


def test_a_remote_session(make_tool):
    tool = make_tool(session=True)
    session = tool.make_world()
    assert asyncio.run(session.act(tool.as_call("x = 20; print('made')"))).text == "made"
    assert asyncio.run(session.act(tool.as_call("x + 1"))).text == "21"
    session.history.append("1 / 0")
    assert asyncio.run(session.act(tool.as_call("x"))).text.endswith(
        "could not be repeated. The next call starts anew."
    )
    assert session.history == []


def test_a_busy_service_is_asked_again(make_tool, stand_in):
    stand_in.failures += [503]
    assert call(make_tool(), "1 + 1") == ToolResult("2")


@pytest.mark.parametrize("oddity", [b"<html>", {"run_result": {"status": "Finished", "return_code": None}}])
def test_a_reply_that_is_not_understood_is_asked_for_again(make_tool, stand_in, oddity):
    stand_in.oddities.append(oddity)
    assert call(make_tool(), "1 + 1") == ToolResult("2")
    assert stand_in.oddities == []


def test_a_service_that_refuses_is_an_observation(make_tool, stand_in):
    stand_in.failures += [403] * 5
    result = call(make_tool(max_attempts=1), "1 + 1")
    assert (result.status, "403" in result.text) == (ERROR, True)


def test_the_limits_are_sent(make_tool, service):
    call(make_tool(time_limit_s=7.0, memory_mb=99), "1")
    (request,) = service.requests
    sent = [request.body[key] for key in ("language", "run_timeout", "memory_limit_MB")]
    assert (request.path, sent) == ("/run_code", ["python", 7.0, 99])


def test_a_service_that_is_not_there_is_an_error():
    tool = PythonTool(backend="sandbox_fusion", backend_options={"url": "http://127.0.0.1:9"}, max_attempts=1)
    assert call(tool, "1").status == ERROR
