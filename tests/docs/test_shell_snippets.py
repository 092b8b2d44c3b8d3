"""The shell snippets of README.md and of the documentation: programs and files exist and take these arguments.

The commands train, download, or serve a page, so that none of them runs: each Python program is started and stopped
when its own parser has accepted its arguments, `make` prints what it would do.
"""

import argparse
import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import pytest
from packaging.requirements import Requirement

from rllib_arpo.commands import command_module
from rllib_arpo.commands.doctor import load_recipe, parse_arguments
from tests.docs.pages import PAGES, REPOSITORY, Snippet, snippets

#: Modules that take no arguments, so that nothing would stop them.
WITHOUT_ARGUMENTS = {"venv": "it is Python's"}


class Parsed(BaseException):
    """A program has accepted its arguments."""


def parse_and_stop(run: Callable[[], object], argv: Sequence[str]) -> None:
    """Runs a program up to the end of its parser's `parse_args`."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse(self, args=None, namespace=None):
        parse_args(self, args, namespace)
        raise Parsed

    with (
        mock.patch.object(sys, "argv", list(argv)),
        mock.patch.dict(os.environ),
        mock.patch.object(argparse.ArgumentParser, "parse_args", parse),
        pytest.raises(Parsed),
    ):
        run()


def python(words: Sequence[str]) -> None:
    first, *rest = words
    if first != "-m":
        parse_and_stop(lambda: runpy.run_path(str(REPOSITORY / first), run_name="__main__"), [first, *rest])
    elif rest[0] == "rllib_arpo":
        rllib_arpo(rest[1:])
    elif rest[0] in WITHOUT_ARGUMENTS:
        assert importlib.util.find_spec(rest[0])
    else:
        parse_and_stop(lambda: runpy.run_module(rest[0], run_name="__main__"), rest)


def rllib_arpo(words: Sequence[str]) -> None:
    command, *rest = words
    parser = argparse.ArgumentParser()
    module = command_module(command)
    module.add_arguments(parser)
    args = parser.parse_args(rest)
    if command == "doctor" and args.recipe:
        parse_arguments(load_recipe(args.recipe[0]), args.recipe[1:])


def make(words: Sequence[str]) -> None:
    """`make -n` prints the commands; the script that it would start gets its arguments as well."""
    of_outer_make = ("MAKEFLAGS", "MAKELEVEL", "ARGS")
    env = {name: value for name, value in os.environ.items() if name not in of_outer_make}
    printed = subprocess.run(["make", "-n", *words], cwd=REPOSITORY, env=env, capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    for line in printed.stdout.splitlines():
        if match := re.match(r"\S*/python (tuned_examples/.*)", line):
            python(shlex.split(match[1]))


def mlflow(words: Sequence[str]) -> None:
    from mlflow.cli import cli

    command, *rest = words
    cli.get_command(None, command).make_context(command, list(rest))


def accelerate(words: Sequence[str]) -> None:
    from accelerate.commands.launch import launch_command_parser

    assert words[0] == "launch"
    args = launch_command_parser().parse_args(list(words[1:]))
    assert args.module
    python(["-m", args.training_script, *args.training_script_args])


def pip(words: Sequence[str]) -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[0] == "install"
    for requirement in (Requirement(word) for word in words[1:] if not word.startswith("-")):
        assert requirement.name != "rllib-arpo" or requirement.extras <= extras.keys()


def pytest_(words: Sequence[str]) -> None:
    assert all((REPOSITORY / word).exists() for word in words if not word.startswith("-"))


def hf(words: Sequence[str]) -> None:
    """The command line of the Hugging Face hub; typer parses it, and would download."""
    assert words[0] == "download"
    program = Path(sys.executable).with_name("hf")
    known = subprocess.run([program, "download", "--help"], capture_output=True, text=True, check=True).stdout
    assert all(word in known for word in words if word.startswith("--"))


def docker(words: Sequence[str]) -> None:
    assert (REPOSITORY / words[words.index("-f") + 1]).is_file()


def ray(words: Sequence[str]) -> None:
    """Ray's own options are not parsed; `ray exec` runs a command of ours."""
    [file] = [word for word in words if word.endswith(".yaml")]
    assert (REPOSITORY / file).is_file()
    if words[0] == "exec":
        [command] = commands(words[-1])
        PROGRAMS[command[0]](command[1:])
    else:
        assert words[0] == "up"


def git(words: Sequence[str]) -> None:
    assert words[0] == "clone"


PROGRAMS: dict[str, Callable[[Sequence[str]], None]] = {
    "git": git,
    "python": python,
    "rllib-arpo": rllib_arpo,
    "make": make,
    "mlflow": mlflow,
    "accelerate": accelerate,
    "pip": pip,
    "pytest": pytest_,
    "docker": docker,
    "hf": hf,
    "ray": ray,
}


def commands(text: str) -> list[list[str]]:
    """The words of each command; comments are left out."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("snippet", [snippet for page in PAGES for snippet in snippets(page, "sh")], ids=str)
def test_shell_snippets_are_commands_that_are_there(snippet: Snippet, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    found = commands(snippet.text)
    assert found
    for program, *rest in found:
        PROGRAMS[Path(program).name](rest)
