import asyncio
import json

import pytest

from rllib_arpo.envs.errors import ToolError, TransientToolError
from rllib_arpo.envs.support.chat_client import ChatClient, read_chat_client
from tests.helpers import web_server

QUESTION = [{"role": "user", "content": "7 * 12?"}]


@pytest.fixture
def endpoint():
    """endpoint(replies) -> a server that gives (status, body) after (status, body) and keeps the requests' headers."""

    def start(replies: list):
        headers = []

        def route(handler):
            headers.append(handler.headers)
            status, body = replies.pop(0)
            body = body if isinstance(body, str) else json.dumps(body)
            web_server.reply(handler, body, status, {"Content-Type": "application/json"})

        return web_server.serving("127.0.0.1", route), headers

    return start


def completion(text):
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}


def ask(server, **options) -> str:
    client = ChatClient(base_url=f"http://127.0.0.1:{server.port}/v1", model="m", **options)
    return asyncio.run(client.complete(QUESTION))


def test_equal_questions_are_asked_once_with_the_key_of_the_environment(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "hunter2")
    serving, headers = endpoint([(200, completion("84 \ud83d")), (200, completion("85"))])
    options = {"cache_path": str(tmp_path / "answers.sqlite"), "api_key_variable": "JUDGE_KEY"}
    with serving as server:
        assert [ask(server, **options) for _ in range(3)] == ["84 \ufffd"] * 3
        assert ask(server, **options, temperature=0.5) == "85"
    assert [header["Authorization"] for header in headers] == ["Bearer hunter2"] * 2


def test_a_busy_endpoint_is_asked_again(endpoint):
    serving, headers = endpoint([(429, {}), (503, {}), (200, completion("84"))])
    with serving as server:
        assert ask(server) == "84"
    assert len(headers) == 3


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (401, {"error": {"message": "wrong key"}}, ToolError, "wrong key"),
        (500, {}, TransientToolError, "500"),
        (200, {"choices": []}, ToolError, "answered without a text"),
        (200, completion(None), ToolError, "answered without a text"),
        (200, "<html>", ToolError, "127.0.0.1"),
    ],
)
def test_what_is_no_answer_is_an_error_and_is_not_kept(endpoint, tmp_path, status, body, error, message):
    serving, _ = endpoint([(status, body), (200, completion("84"))])
    options = {"max_attempts": 1, "cache_path": str(tmp_path / "answers.sqlite")}
    with serving as server:
        with pytest.raises(ToolError, match=message) as raised:
            ask(server, **options)
        assert type(raised.value) is error
        assert ask(server, **options) == "84"


def test_an_endpoint_that_is_not_there_is_an_error_that_may_pass():
    client = ChatClient(base_url="http://127.0.0.1:9/v1", model="m", max_attempts=1)
    with pytest.raises(TransientToolError, match=r"http://127.0.0.1:9/v1"):
        asyncio.run(client.complete(QUESTION))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "m"}, "judge has no 'base_url'."),
        ({"base_url": "a", "model": "m"}, "base_url must begin with http:// or https://, which 'a' does not."),
        ({"base_url": "http://a", "model": "m", "max_attempts": 0}, "max_attempts must be more than 0, not 0."),
        ({"base_url": "http://a", "model": "m", "api_key": "x"}, "Unknown key of judge 'api_key': did you mean"),
    ],
)
def test_wrong_fields_are_named(fields, message):
    with pytest.raises(ValueError) as error:
        read_chat_client(fields, "judge")
    assert str(error.value).startswith(message)
