"""Engines by name, and what they say when they cannot be made."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import rllib_arpo
from rllib_arpo.engine import ENGINES, EngineConfig, make_engine
from rllib_arpo.engine.scripted_engine import ScriptedEngine
from rllib_arpo.engine.vllm_versions import GPU_MEMORY_UTILIZATION


def test_an_engine_is_made_by_name():
    assert sorted(ENGINES) == ["scripted", "vllm"]
    assert isinstance(make_engine("scripted", EngineConfig("none")), ScriptedEngine)
    with pytest.raises(ValueError, match=r"^engine='sglang' is unknown: choose one of 'vllm', 'scripted'\.$"):
        make_engine("sglang", EngineConfig("none"))


def test_one_folder_imports_vllm():
    package = Path(rllib_arpo.__file__).parent
    importing = re.compile(r"^\s*(import|from) vllm\b", flags=re.MULTILINE)
    folders = {file.parent for file in package.rglob("*.py") if importing.search(file.read_text())}
    assert folders == {package / "engine" / "vllm"}


def test_a_missing_vllm_is_one_sentence(monkeypatch):
    for name in [name for name in sys.modules if re.match(r"(rllib_arpo\.engine\.)?vllm\b", name)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"^engine='vllm' needs the package vllm, which is not installed: .*\[cpu\]"):
        make_engine("vllm", EngineConfig("none"))


def test_an_unknown_key_of_engine_kwargs_is_named(llama_folder):
    message = r"^Unknown key of engine_kwargs 'max_num_seq': did you mean 'max_num_seqs'\?$"
    with pytest.raises(ValueError, match=message):
        make_engine("vllm", EngineConfig(llama_folder, engine_kwargs={"max_num_seq": 4}))


def test_on_a_gpu_an_engine_takes_the_memory_that_the_doctor_counts(llama_folder, monkeypatch):
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    from rllib_arpo.engine.vllm import arguments

    assert arguments.usage_context() is UsageContext.ENGINE_CONTEXT
    monkeypatch.setattr(arguments, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    # Of which vLLM takes the batches of a large GPU.
    assert arguments.usage_context() is UsageContext.LLM_CLASS
    assert arguments.engine_args(EngineConfig(llama_folder)).gpu_memory_utilization == GPU_MEMORY_UTILIZATION
    assert EngineArgs(llama_folder).gpu_memory_utilization == GPU_MEMORY_UTILIZATION
    assert arguments.engine_args(EngineConfig(llama_folder)).async_scheduling is True
    half = EngineConfig(llama_folder, engine_kwargs={"gpu_memory_utilization": 0.5})
    assert arguments.engine_args(half).gpu_memory_utilization == 0.5


def test_flasks_globals_can_be_read_while_an_engine_is_built():
    """vLLM's CPU build looks at those of every module; here they stay loaded for the engines of later tests."""
    import flask

    from rllib_arpo.engine.vllm.process_state import readable_globals

    watched = flask.request, flask.current_app, flask.session, flask.g
    with readable_globals():
        assert all(hasattr(value, "__dict__") for value in watched)
    with pytest.raises(RuntimeError, match="outside of request context"):
        hasattr(flask.request, "__dict__")
