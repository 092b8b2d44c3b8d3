"""What is shown of settings, command lines and addresses."""

import json

import pytest

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.redaction import command_without_secrets, comparable, without_secrets

SERVER = {
    "command": "npx",
    "args": ["--token", "S3CRET", "8080"],
    "env": {"API": "S3CRET", "PORT": 8080},
    "headers": {"X-Any": "S3CRET"},
    "header_variables": {"Authorization": "MY_TOKEN"},
    "url": "https://me:S3CRET@host:80/a@b?api_key=S3CRET&page=2",
}
SHOWN_SERVER = {
    "command": "npx",
    "args": ["***", "***", "***"],
    "env": {"API": "***", "PORT": "***"},
    "headers": {"X-Any": "***"},
    "header_variables": {"Authorization": "***"},
    "url": "https://***@host:80/a@b?api_key=***&page=2",
}


def test_settings_keep_their_names_and_shapes():
    config = {"tools": {"mcp": {"servers": {"files": SERVER}}}, "max_tokens": 32, "password": 1234, "env": "Trails-v0"}
    config |= {"runtime_env": {"env_vars": {"A": "S3CRET"}}, "webhook_url": "S3CRET", "bearer": "S3CRET"}
    config |= {"apiKey": "S3CRET", "judge": {"base_url": "http://a:b?c#d@e@host/v1", "api_key_variable": "OPENAI_KEY"}}
    assert without_secrets(config) == {
        "tools": {"mcp": {"servers": {"files": SHOWN_SERVER}}},
        "max_tokens": 32,
        "password": "***",
        "env": "Trails-v0",
        "runtime_env": {"env_vars": {"A": "***"}},
        "webhook_url": "***",
        "bearer": "***",
        "apiKey": "***",
        "judge": {"base_url": "http://***@host/v1", "api_key_variable": "OPENAI_KEY"},
    }


def test_what_is_hidden_can_be_compared():
    secret, other = ({"tools": (True, {"answer_key": key, "url": f"http://h/?sig={key}", "n": 1})} for key in "ab")
    assert comparable(secret) == {"tools": [True, {"answer_key": "*** d749", "url": "http://h/?sig=*** 1de9", "n": 1}]}
    assert comparable(other) == {"tools": [True, {"answer_key": "*** fa34", "url": "http://h/?sig=*** 1039", "n": 1}]}
    assert comparable(7, "seed_key") == "*** 7902"


def test_json_in_a_text_is_judged_as_what_it_says():
    assert json.loads(without_secrets(json.dumps({"mcp": SERVER}))) == {"mcp": SHOWN_SERVER}
    assert without_secrets("{api: 1} [") == "{api: 1} ["
    assert without_secrets({"headers": {"X-Pin": 1234, "any": [5]}, "max_tokens": [1, 2]}) == {
        "headers": {"X-Pin": "***", "any": ["***"]},
        "max_tokens": [1, 2],
    }
    assert without_secrets("[" * 100_000) == "[" * 100_000


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--hf_token abc --api_key=abc --wandb-key abc", "--hf_token *** --api_key=*** --wandb-key ***"),
        ("--headers a=b c --max-tokens 32 last", "--headers *** *** --max-tokens 32 last"),
        ("--env A=abc --env Trails-v0 LEVEL=3", "--env A=*** --env Trails-v0 LEVEL=3"),
        ("--model m=https://a:b@host/m API_KEY=abc", "--model m=https://***@host/m API_KEY=***"),
        ('--env-config {"judge":{"api_key":"abc"}}', '--env-config {"judge": {"api_key": "***"}}'),
        ('--env-config={"judge":{"api_key":"abc"}}', '--env-config={"judge": {"api_key": "***"}}'),
        ("train.py --store sqlite:////home/a@b/m.db", "train.py --store sqlite:////home/a@b/m.db"),
    ],
)
def test_a_command_line_can_be_read_and_has_no_secret(given, expected):
    assert " ".join(command_without_secrets(given.split(" "))) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://h/c?sv=1&sig=a%2Fb&pat=c", "https://h/c?sv=1&sig=***&pat=***"),
        (
            "user=me pass=abc DB_PWD=abc cwd=/a compat=1 max_tokens=32",
            "user=me pass=*** DB_PWD=*** cwd=/a compat=1 max_tokens=32",
        ),
        ("curl -H 'Authorization: Bearer abc' h", "curl -H 'Authorization: ***' h"),
        ("x-api-key: abc, Cookie: abc\nnext", "x-api-key: ***, Cookie: ***\nnext"),
        ("{'api_key': 'a\\'bc', 'model': 'm'}", "{'api_key': '***', 'model': 'm'}"),
        ('refused {"token": "a b", "model": "m"} (401)', 'refused {"token": "***", "model": "m"} (401)'),
        ("with headers={'X': {'Y': 'abc'}} here", "with headers=***"),
        ("McpServer(args=['--x', 'abc'], env={'A': 'abc'})", "McpServer(args=***"),
        ("{'mcp': {'args': ['abc'], 'env': {'A': 'abc'}}}", "{'mcp': {'args': ['***'], 'env': {'A': '***'}}}"),
        ("run --token abc --max-tokens 32 --hf-token=abc", "run --token *** --max-tokens 32 --hf-token=***"),
        ("Proxy-Authorization: Digest user, abc", "Proxy-Authorization: ***"),
        ("sent bearer abc and sk-proj-abcdefghijklmnop12", "sent bearer *** and ***"),
        ("https://h/cb?code=abc&page=2#access_token=abc", "https://h/cb?code=***&page=2#access_token=***"),
        ("eyJhbGci.eyJzdWIi.abc hf_" + 20 * "a" + " hf_model sk-learn", "*** *** hf_model sk-learn"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END", "-----BEGIN ***-----END"),
        ("The key is wrong: it is not known.", "The key is wrong: it is not known."),
        ("a_" * 100_000, "a_" * 100_000),
        ("key='" * 10_000, "key='***'" * 5_000),
    ],
)
def test_names_in_a_text_hide_what_follows_them(given, expected):
    assert without_secrets(given) == expected


def test_the_settings_of_a_run_are_shown():
    config = ARPOConfig().environment("ToolEnv-v0", env_config={"task": "gsm8k"}).to_dict()
    texts = {key: value for key, value in config.items() if isinstance(value, str | int | float)}
    assert {key for key in texts if without_secrets(texts[key], key) != texts[key]} == {"action_mask_key"}
