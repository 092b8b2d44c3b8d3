"""The accepted versions of vLLM and torch, and the differences between some of them."""

import importlib.util
import tomllib
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from rllib_arpo.engine import vllm_versions

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
ACCEPTED = ("0.26.0", "0.32.0", "0.33.0", "0.33.1.dev7+gabc")
REFUSED = ("0.25.1", "0.27.1", "0.31.0", "0.34.0", "1.32.0")


@pytest.mark.parametrize("version", [*ACCEPTED, *REFUSED])
def test_a_version_is_accepted_or_refused_in_one_sentence(monkeypatch, version):
    """The extra `gpu` names the same versions."""
    requirements = map(Requirement, PROJECT["optional-dependencies"]["gpu"])
    (extra,) = (requirement.specifier for requirement in requirements if requirement.name == "vllm")
    assert extra.contains(version, prereleases=True) == (version in ACCEPTED)
    monkeypatch.setattr(vllm_versions, "version", lambda build: {"vllm": version}[build])
    if version in ACCEPTED:
        vllm_versions.check_vllm_version()
        return
    expected = f"engine='vllm': needs vLLM 0.32 or 0.33 (with torch 2.11: 0.26), but {version} is installed."
    # A process with another vLLM than the driver refuses it when it imports the engine.
    for check in (vllm_versions.check_vllm_version, lambda: load_again("rllib_arpo.engine.vllm")):
        with pytest.raises(ValueError) as error:
            check()
        assert str(error.value) == expected


class Source33(ABC):
    """`WeightSource` of vLLM 0.33, as far as a subclass meets it."""

    def __init_subclass__(cls):
        assert isinstance(cls.__dict__["metadata"], cached_property)

    @property
    @abstractmethod
    def metadata(self): ...

    def iter_full(self):
        raise NotImplementedError


def test_a_source_of_weights_is_what_each_vllm_reads(monkeypatch):
    from rllib_arpo.engine.vllm import weight_transfer as here

    metadata, pairs = [here.ParamMeta("w", torch.float32, (2, 3))], [("w", torch.ones(2, 3))]
    older = here.WeightStream(metadata)
    older.pairs = iter(pairs)
    assert (older.metadata(), [name for name, _ in older]) == (metadata, ["w"])
    monkeypatch.setattr("vllm.distributed.weight_transfer.WeightSource", Source33)
    newer = load_again(here.__name__).WeightStream(metadata)
    newer.pairs = iter(pairs)
    assert (newer.metadata, [name for name, _ in newer.iter_full()]) == (metadata, ["w"])


def load_again(name: str):
    """A second copy of a module, which other modules do not see."""
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
