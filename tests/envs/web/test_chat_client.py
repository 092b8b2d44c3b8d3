import asyncio
import time

import pytest

from rllib_arpo.envs.errors import ToolError, TransientToolError
from rllib_arpo.envs.support.chat_client import ChatClient, UnreadReply
from tests.helpers.web_server import Reply, completion, json_service


def endpoint(*replies: Reply):
    """A server that gives one reply after the other."""
    left = list(replies)
    return json_service(lambda request: left.pop(0))


def ask(url: str, **options) -> str:
    client = ChatClient(base_url=f"{url}/v1", model="m", **options)
    return asyncio.run(client.complete([{"role": "user", "content": "7 * 12?"}]))


def test_equal_questions_are_asked_once_with_the_key_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "hunter2")
    options = {"cache_path": str(tmp_path / "answers.sqlite"), "api_key_variable": "JUDGE_KEY"}
    with endpoint(Reply(completion("84 \ud83d")), Reply(completion("85"))) as server:
        assert [ask(server.url, **options) for _ in range(3)] == ["84 \ufffd"] * 3
        assert ask(server.url, **options, temperature=0.5) == "85"
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer hunter2"] * 2


def test_a_busy_endpoint_is_asked_again():
    with endpoint(Reply({}, 429), Reply({}, 503), Reply(completion("84"))) as server:
        assert ask(server.url) == "84"
    assert len(server.requests) == 3


#: The text of an error is decoded in the loop of the rollout, and Python decodes this one in quadratic time.
SLOW = Reply(b"a" * 200_000 + b"-" + b"a" * 200_000, 400, headers={"Content-Type": "text/plain; charset=punycode"})


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (Reply({"error": {"message": "wrong key"}}, 401), ToolError, "wrong key"),
        (Reply({}, 500), TransientToolError, "500"),
        (Reply({"choices": []}), ToolError, "answered without a text"),
        (Reply(completion(None)), ToolError, "answered without a text"),
        (Reply(b"<html>"), ToolError, "127.0.0.1"),
        (SLOW, ToolError, "127.0.0.1"),
    ],
)
def test_what_is_no_answer_is_an_error_and_is_not_kept(tmp_path, reply, error, message):
    options = {"max_attempts": 1, "cache_path": str(tmp_path / "answers.sqlite")}
    with endpoint(reply, Reply(completion("84"))) as server:
        begin = time.thread_time()
        with pytest.raises(ToolError, match=message) as raised:
            ask(server.url, **options)
        assert time.thread_time() - begin < 5
        assert type(raised.value) is error
        assert ask(server.url, **options) == "84"
    with pytest.raises(TransientToolError, match=r"http://127.0.0.1:9/v1"):
        ask("http://127.0.0.1:9", max_attempts=1)


def test_what_is_none_is_not_sent():
    with endpoint(Reply(completion("84")), Reply(completion("84"))) as server:
        assert ask(server.url) == ask(server.url, temperature=None, max_tokens=None) == "84"
    sent = [request.body.keys() & {"temperature", "max_tokens"} for request in server.requests]
    assert sent == [{"temperature", "max_tokens"}, set()]


def test_the_error_says_what_the_endpoint_does_not_support():
    message = "Unsupported parameter: 'max_tokens' is not supported with this model."
    with endpoint(Reply({"error": {"message": message}}, 400)) as server, pytest.raises(ToolError, match=message):
        ask(server.url)


def test_an_answer_that_was_cut_or_cannot_be_read_is_an_error_for_those_who_must_read_it(tmp_path):
    messages = [{"role": "user", "content": "7 * 12?"}]
    with endpoint(
        *[Reply(completion("84", "length"))] * 2, *[Reply(completion(text)) for text in ("x", "85")]
    ) as server:
        client = ChatClient(base_url=f"{server.url}/v1", model="m", cache_path=str(tmp_path / "answers.sqlite"))
        for sentence in (r"was cut \(finish_reason 'length'\): '84'", "cannot be read: 'x'"):
            with pytest.raises(UnreadReply, match=sentence):
                asyncio.run(client.complete(messages, str.isdigit))
            if "cut" in sentence:
                assert ask(server.url) == "84"
        assert asyncio.run(client.complete(messages, str.isdigit)) == "85"
