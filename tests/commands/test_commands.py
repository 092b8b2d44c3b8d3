"""One entry point for all commands."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rllib_arpo import commands
from rllib_arpo.errors import CommandError


class Toy:
    """Says what it was given.

    Not the first line.
    """

    calls: list = []  # noqa: RUF012

    @staticmethod
    def add_arguments(parser):
        parser.add_argument("--number", type=int, default=1)

    @classmethod
    def run(cls, args, argv):
        cls.calls.append((args.number, list(argv)))
        if args.number == 0:
            raise CommandError("number=0: must not be.")
        if args.number < 0:
            raise KeyboardInterrupt
        return 7


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(commands, "COMMANDS", {"toy": "says what it was given"})
    monkeypatch.setattr(commands.importlib, "import_module", lambda name: {"rllib_arpo.commands.toy": Toy}[name])
    monkeypatch.setattr(Toy, "calls", [])
    return Toy


def test_a_command_gets_its_own_arguments_and_gives_the_status(toy):
    assert commands.main(["toy", "--number", "3"]) == 7
    assert toy.calls == [(3, ["--number", "3"])]


def test_what_is_wrong_is_one_sentence_and_a_status(toy, capsys):
    assert commands.main(["toy", "--number", "0"]) == 2
    assert capsys.readouterr().err == "error: number=0: must not be.\n"
    assert commands.main(["toy", "--number", "0", "--traceback"]) == 2
    assert "in run_command" in capsys.readouterr().err
    assert commands.main(["toy", "--number", "-1"]) == 130


def test_help_lists_the_commands_and_describes_one(toy, capsys):
    for arguments, expected in ((["--help"], "toy          says what it was given"), (["toy", "--help"], "--number")):
        with pytest.raises(SystemExit) as ended:
            commands.main(arguments)
        assert ended.value.code == 0
        assert expected in capsys.readouterr().out
    for arguments, message in (([], "required: COMMAND"), (["toi"], "invalid choice: 'toi'")):
        with pytest.raises(SystemExit) as ended:
            commands.main(arguments)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_help_imports_no_command_and_nothing_heavy():
    code = (
        "import sys, json\nfrom rllib_arpo.commands import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = ('transformers', 'mlflow', 'vllm', 'matplotlib', 'rllib_arpo.commands.entropy')\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
    assert "entropy" in done.stdout


def test_the_console_script_and_the_commands_are_there():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"rllib-arpo": "rllib_arpo.commands:main"}
    for command in commands.COMMANDS:
        module = commands.command_module(command)
        assert callable(module.add_arguments) and callable(module.run) and module.__doc__
