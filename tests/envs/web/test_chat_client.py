import asyncio
import time

import pytest

from rllib_arpo.envs.errors import ToolError, TransientToolError
from rllib_arpo.envs.support.chat_client import ChatClient, read_chat_client
from tests.helpers import web_server
from tests.helpers.web_server import Reply, completion, json_service

QUESTION = [{"role": "user", "content": "7 * 12?"}]


def endpoint(replies: list):
    """A server that gives one (status, body) after the other."""

    def answer(_request) -> Reply:
        status, body = replies.pop(0)
        return Reply(body, status)

    return json_service(answer)


def ask(server, **options) -> str:
    client = ChatClient(base_url=f"{server.url}/v1", model="m", **options)
    return asyncio.run(client.complete(QUESTION))


def test_equal_questions_are_asked_once_with_the_key_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "hunter2")
    replies = [(200, completion("84 \ud83d")), (200, completion("85"))]
    options = {"cache_path": str(tmp_path / "answers.sqlite"), "api_key_variable": "JUDGE_KEY"}
    with endpoint(replies) as server:
        assert [ask(server, **options) for _ in range(3)] == ["84 \ufffd"] * 3
        assert ask(server, **options, temperature=0.5) == "85"
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer hunter2"] * 2


def test_a_busy_endpoint_is_asked_again():
    with endpoint([(429, {}), (503, {}), (200, completion("84"))]) as server:
        assert ask(server) == "84"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (401, {"error": {"message": "wrong key"}}, ToolError, "wrong key"),
        (500, {}, TransientToolError, "500"),
        (200, {"choices": []}, ToolError, "answered without a text"),
        (200, completion(None), ToolError, "answered without a text"),
        (200, b"<html>", ToolError, "127.0.0.1"),
    ],
)
def test_what_is_no_answer_is_an_error_and_is_not_kept(tmp_path, status, body, error, message):
    options = {"max_attempts": 1, "cache_path": str(tmp_path / "answers.sqlite")}
    with endpoint([(status, body), (200, completion("84"))]) as server:
        with pytest.raises(ToolError, match=message) as raised:
            ask(server, **options)
        assert type(raised.value) is error
        assert ask(server, **options) == "84"


def test_an_endpoint_does_not_choose_a_slow_character_set():
    """The text of an error is decoded in the loop of the rollout."""
    slow, kind = "a" * 200_000 + "-" + "a" * 200_000, {"Content-Type": "text/plain; charset=punycode"}
    with web_server.serving("127.0.0.1", lambda handler: web_server.reply(handler, slow, 400, kind)) as server:
        begin = time.thread_time()
        with pytest.raises(ToolError):
            asyncio.run(ChatClient(base_url=f"http://127.0.0.1:{server.port}", model="m").complete(QUESTION))
        assert time.thread_time() - begin < 5


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
