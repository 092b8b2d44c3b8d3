"""The command of the tools' benchmarks, with stand-ins for what is measured."""

import json
import sys
import types
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "release" / "benchmarks"


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import tools

    for name, targets in tools.TARGETS.items():
        module = types.ModuleType(name)
        module.measure = lambda quick, targets=targets: {**dict.fromkeys(targets, 1.25), "more": float(quick)}
        monkeypatch.setitem(sys.modules, name, module)
    return tools


def test_every_figure_is_written_with_what_else_was_measured(tools, tmp_path):
    file = tmp_path / "tools.json"
    assert tools.main(["--json", str(file), "--quick"]) == 0
    written = json.loads(file.read_text())
    for targets in tools.TARGETS.values():
        for key in targets:
            assert written[key] == 1.25
            assert written[f"{key}_detail"]["more"] == 1.0


def test_a_tool_that_cannot_be_measured_has_no_figures_and_ends_with_an_error(tools, monkeypatch, tmp_path):
    def measure(quick):
        raise RuntimeError("no Chromium")

    monkeypatch.setattr(sys.modules["tool_browse"], "measure", measure)
    file = tmp_path / "tools.json"
    assert tools.main(["--json", str(file)]) == 1
    written = json.loads(file.read_text())
    assert written["ssrf_succeeded"] is None
    assert written["ssrf_succeeded_detail"] == {"failed": "RuntimeError: no Chromium"}
    assert written["math_wrong"] == 1.25


def test_every_figure_that_a_module_promises_is_in_its_docstring(tools):
    for module, targets in tools.TARGETS.items():
        source = (BENCHMARKS / f"{module}.py").read_text()
        assert all(key in source for key in targets), module


def test_python_without_a_server_computes_the_same(monkeypatch):
    """The side that the python tool is compared with: it raises unless its calls give the right answers."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import tool_python

    assert tool_python._cold(1)["python_cold_64_calls_per_s"] > 0
