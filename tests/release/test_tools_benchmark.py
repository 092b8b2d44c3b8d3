"""The command of the tools' benchmarks, with stand-ins for what is measured."""

import importlib
import inspect
import json

import pytest

from release.benchmarks.tools import __main__ as command
from release.benchmarks.tools import python


@pytest.fixture
def modules(monkeypatch):
    """Name -> the module of each tool, with a stand-in for what it measures."""
    modules = {name: importlib.import_module(f"release.benchmarks.tools.{name}") for name in command.TARGETS}
    for name, targets in command.TARGETS.items():
        figures = dict.fromkeys(targets, 1.25)
        monkeypatch.setattr(modules[name], "measure", lambda quick, f=figures: {**f, "more": float(quick)})
    return modules


def test_every_figure_is_written_with_what_else_was_measured(modules, tmp_path):
    file = tmp_path / "tools.json"
    assert command.main(["--json", str(file), "--quick"]) == 0
    written = json.loads(file.read_text())
    for targets in command.TARGETS.values():
        for key in targets:
            assert written[key] == 1.25
            assert written[f"{key}_detail"]["more"] == 1.0


def test_a_tool_that_cannot_be_measured_has_no_figures_and_ends_with_an_error(modules, monkeypatch, tmp_path):
    def measure(quick):
        raise RuntimeError("no Chromium")

    monkeypatch.setattr(modules["browse"], "measure", measure)
    file = tmp_path / "tools.json"
    assert command.main(["--json", str(file)]) == 1
    written = json.loads(file.read_text())
    assert written["ssrf_succeeded"] is None
    assert written["ssrf_succeeded_detail"] == {"failed": "RuntimeError: no Chromium"}
    assert written["math_wrong"] == 1.25


def test_every_figure_that_a_module_promises_is_in_its_docstring(modules):
    for name, targets in command.TARGETS.items():
        source = inspect.getsource(modules[name])
        assert all(key in source for key in targets), name


def test_python_without_a_server_computes_the_same():
    """The side that the python tool is compared with: it raises unless its calls give the right answers."""
    assert python._cold(1)["python_cold_64_calls_per_s"] > 0
