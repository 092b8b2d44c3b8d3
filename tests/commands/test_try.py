"""The command that plays a world."""

from __future__ import annotations

import io
import json
import re

import pytest

from rllib_arpo.commands import run_command
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


def test_a_world_is_played_at_random(tmp_path, capsys):
    assert run_command("try", [config(tmp_path), "--random", "20", "--words", "hello"]) == 0
    played = capsys.readouterr().out
    assert played.count("> hello\n") + played.count('> {"name": "buy"') == 20
    assert "error" not in played


@pytest.mark.parametrize(
    ("text", "arguments", "complaint"),
    [
        ("[]", [], "an env_config is a JSON object."),
        ('{"task": "arithmetic"}', [], "it has no 'world'."),
        ('{"world": "tests.commands.test_try:Shop"}', ["--random", "1", "--words"], "expected at least one argument"),
        ("{}", ["--words", "a"], "error: --words: belongs to --random."),
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
