"""What this package chooses by the version of vLLM or torch, with the facts of each version."""

import importlib.util
from abc import ABC, abstractmethod
from functools import cached_property
from types import ModuleType

import pytest
import torch
from packaging.version import Version

from release.compatibility import facts
from rllib_arpo.engine import vllm_versions
from rllib_arpo.engine.vllm_versions import FIRST_WITH_TRANSFER, check_vllm_version
from rllib_arpo.policy.attention import varlen
from tests.helpers.configs import small_config
from tests.validation.sentences import message

KNOWN = facts.load()
VLLMS = KNOWN["vllm"]["versions"]


@pytest.fixture
def install(monkeypatch):
    """Makes this package believe that a version of vLLM is installed."""
    return lambda version: monkeypatch.setattr(vllm_versions, "version", lambda build: {"vllm": version}[build])


@pytest.mark.parametrize("version", [*VLLMS, "0.33.1.dev7+gabc"])
def test_supported_versions_are_accepted(install, version):
    install(version)
    check_vllm_version()


@pytest.mark.parametrize("version", ["0.25.1", "0.34.0", "1.0.0"])
def test_other_versions_are_refused_in_one_sentence(install, model_folder, version):
    install(version)
    config = small_config(model_folder).update_from_dict({"engine": "vllm"})
    assert message(config) == f"engine='vllm': needs vLLM >=0.26,<0.34, and {version} is installed."


def test_a_process_with_another_vllm_than_the_driver_refuses_it(install):
    install("0.25.1")
    with pytest.raises(ValueError, match=r"^engine='vllm': needs vLLM >=0\.26,<0\.34, and 0\.25\.1 is installed\.$"):
        load_again("rllib_arpo.engine.vllm")


@pytest.mark.parametrize("version", VLLMS)
def test_the_weight_transfer_is_refused_where_workers_cannot_end_it(install, model_folder, version):
    install(version)
    changes = {"weight_sync": "nccl", "engine": "vllm", "num_env_runners": 1}
    config = small_config(model_folder).update_from_dict(
        changes | {"num_gpus_per_learner": 1, "num_gpus_per_env_runner": 0.5}
    )
    known = facts.facts_of(KNOWN, "vllm", version)
    missing = known["vllm.v1.worker.gpu_worker:Worker.shutdown_weight_transfer_engine"] is None
    assert missing == (Version(version) < FIRST_WITH_TRANSFER)
    refused = f"weight_sync='nccl': needs vLLM 0.32 or newer, and {version} is installed; use 'in_process_reload'."
    separate = (
        "weight_sync='nccl': needs separate GPUs, at least one each, not num_gpus_per_learner=1 and "
        "num_gpus_per_env_runner=0.5."
    )
    assert message(config) == (refused if missing else separate)


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

    source = "vllm.distributed.weight_transfer:WeightSource"
    kinds = {version: facts.facts_of(KNOWN, "vllm", version)[f"{source}.metadata"] for version in VLLMS}
    iterates = {version: facts.facts_of(KNOWN, "vllm", version)[f"{source}.iter_full"] is not None for version in VLLMS}
    assert iterates == {version: kind == "property" for version, kind in kinds.items()}
    assert [version for version, newer in iterates.items() if newer] == ["0.33.0"]

    metadata, pairs = [here.ParamMeta("w", torch.float32, (2, 3))], [("w", torch.ones(2, 3))]
    older = here.WeightStream(metadata, iter(pairs))
    assert (older.metadata(), [name for name, _ in older]) == (metadata, ["w"])
    monkeypatch.setattr("vllm.distributed.weight_transfer.WeightSource", Source33)
    newer = load_again(here.__name__).WeightStream(metadata, iter(pairs))
    assert (newer.metadata, [name for name, _ in newer.iter_full()]) == (metadata, ["w"])


def load_again(name: str) -> ModuleType:
    """A second copy of a module, which other modules do not see."""
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("version", "heads", "grouping"), [
    ("2.11.0", 4, {}),
    ("2.13.0", 2, {"enable_gqa": True}),
    ("2.14.0", 2, {"enable_gqa": True}),
])  # fmt: skip
def test_grouped_heads_with_the_varlen_attention_of_each_torch(monkeypatch, version, heads, grouping):
    signature = facts.signature_of(facts.facts_of(KNOWN, "torch", version)["torch.nn.attention.varlen:varlen_attn"])
    seen = {}

    def varlen_attn(*args, **kwargs):
        seen.update(signature.bind(*args, **kwargs).arguments)

    varlen_attn.__signature__ = signature
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    query, key = torch.zeros(3, 4, 8), torch.arange(2.0)[None, :, None].expand(3, 2, 8)
    varlen._varlen_attn(query, key, key, "queries", "keys", 3, 5, 0.5)
    assert (seen.pop("query"), seen.pop("value").shape[1]) == (query, heads)
    assert seen.pop("key")[0, :, 0].tolist() == ([0, 0, 1, 1] if heads == 4 else [0, 1])
    lengths = {"cu_seq_q": "queries", "cu_seq_k": "keys", "max_q": 3, "max_k": 5}
    assert seen == {**lengths, "scale": 0.5, "window_size": (-1, 0), **grouping}
