"""The command that plays a world."""

from __future__ import annotations

import io
import json
import re

import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.worlds import Reply, World

BUY = {
    "type": "object",
    "description": "Buys something.",
    "properties": {"item": {"type": "string", "enum": ["lamp", "chair"]}, "number": {"type": "integer", "maximum": 3}},
    "required": ["item", "number"],
}


class Shop(World):
    """Sells until it is told to close."""

    tools = {"buy": BUY}  # noqa: RUF012
    takes_text = True

    def __init__(self, coins: int = 100):
        self.coins = coins

    async def reset(self, question):
        return f"You have {self.coins} coins."

    async def act(self, action):
        if isinstance(action, str):
            return Reply("", reward=0.5, done=action == "close")
        self.coins -= action.arguments["number"]
        return Reply(f"{self.coins} coins are left")


def config(tmp_path, **world) -> str:
    file = tmp_path / "env.json"
    file.write_text(json.dumps({"world": {f"{__name__}:Shop": world}}))
    return str(file)


def test_a_world_is_played_by_hand_and_forked(tmp_path, capsys, monkeypatch):
    lines = ['{"name": "buy", "arguments": {"item": "lamp", "number": 3}}', '{"name": "buy", "arguments": {}}', "close"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\nnever read"))
    assert run_command("try", [config(tmp_path, coins=10)]) == 0
    played, _, end = capsys.readouterr().out.partition("Actions:")
    assert played.splitlines() == [
        "world: You have 10 coins.",
        f"> {lines[0]}",
        "ok: 7 coins are left",
        f"> {lines[1]}",
        "error: buy: wrong arguments: 'item' is a required property.",
        "> close",
        "ok:  (reward 0.5)",
        "The world has ended the trajectory.",
    ]
    assert re.fullmatch(
        r" 2\. Rewards: 0\.5\. It forks by copy: \d+\.\d\d ms \(median of 5\)\.\n"
        r"Repeated twice, it gives the same replies\.\n",
        end,
    )


class Store:
    """Its method raises an error, or it cannot be reached."""

    def reset(self, seed: int) -> None:
        """Does nothing."""

    def find(self, what: str) -> str:
        """Finds something."""
        raise {"no": ValueError, "broken": BrokenToolError}[what](what)

    def get_reward(self) -> float:
        return 0.0


def test_a_models_mistake_is_told_from_a_broken_world(tmp_path, capsys, monkeypatch):
    file = tmp_path / "env.json"
    file.write_text(json.dumps({"world": {f"{__name__}:Store": {}}}))
    lines = [json.dumps({"name": "find", "arguments": {"what": what}}) for what in ("no", "broken")]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    assert run_command("try", [str(file), "--forks", "0"]) == 2
    said = capsys.readouterr()
    assert "error (ValueError): no" in said.out.splitlines()
    assert said.err == "error: broken\n"


def test_a_world_is_played_at_random(tmp_path, capsys):
    assert run_command("try", [config(tmp_path), "--random", "20", "--words", "hello"]) == 0
    played = capsys.readouterr().out
    assert played.count("> hello\n") + played.count('> {"name": "buy"') == 20
    assert "error" not in played


def test_an_agent_of_an_api_reads_lines_as_whole_turns(tmp_path, capsys, monkeypatch):
    file = tmp_path / "env.json"
    file.write_text(json.dumps({"world": "tests.helpers.api_agents:adder", "protocol": "function_calling"}))
    monkeypatch.setattr("sys.stdin", io.StringIO('{"name": "add", "arguments": {"n": 2}}\nThat is all.\n'))
    assert run_command("try", [str(file), "--forks", "0"]) == 0
    played = capsys.readouterr().out.splitlines()
    assert played[2:] == [
        "ok: {'role': 'tool', 'content': '2', 'name': 'add', 'tool_call_id': 'call_1'}",
        "> That is all.",
        "ok: ",
        "The world has ended the trajectory.",
        "Actions: 2. Rewards: 0. ",
        "Repeated twice, it gives the same replies.",
    ]


@pytest.mark.parametrize(
    ("text", "arguments", "complaint"),
    [
        ("[]", [], "the env_config must be a JSON object."),
        ('{"task": "arithmetic"}', [], "has no 'world'."),
        ('{"world": "tests.commands.test_try:Shop"}', ["--random", "1", "--words"], "expected at least one argument"),
        ("{}", ["--words", "a"], "error: --words: only --random reads it."),
        ("{}", ["--random", "-2"], "error: --random=-2: must be an integer >= 0."),
        ('{"world": "tests.commands.test_try:Sho"}', [], "cannot be imported"),
        ('{"world": {"tests.commands.test_try:Shop": {"coin": 1}}}', [], "got an unexpected keyword argument 'coin'."),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, capsys, text, arguments, complaint):
    file = tmp_path / "env.json"
    file.write_text(text)
    try:
        assert run_command("try", [str(file), *arguments]) == 2
    except SystemExit as error:
        assert error.code == 2
    assert complaint in capsys.readouterr().err
