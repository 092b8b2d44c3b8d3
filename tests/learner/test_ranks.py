"""Learners in a process group, mostly of one rank, make the update of one without; NCCL: tests/gpu."""

import ctypes
import gc
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from torch.distributed.tensor import DTensor

from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.policy import llm_rl_module
from rllib_arpo.policy.causal_lm import load_causal_lm
from rllib_arpo.policy.sharded_state import scatter_from_first
from tests.helpers.models import tiny_model
from tests.helpers.other_python import free_port
from tests.learner import plain
from tests.learner.builders import (
    assert_close,
    assert_same_gradient,
    build_learner,
    make_batch,
    make_config,
    whole_parameters,
)
from tests.learner.ranks import Ranks, in_processes


@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_one_rank_makes_the_update_of_a_learner_alone(model_folder, sharding):
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(3)]
    expected = Ranks().gradients(model_folder, questions)
    assert_same_gradient(Ranks("gloo", sharding).gradients(model_folder, questions), expected)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_only_the_first_rank_reads_the_model(model_folder, sharding):
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(3)]
    expected = Ranks().gradients(model_folder, questions)
    assert_same_gradient(Ranks("gloo", sharding, num_ranks=2).gradients(model_folder, questions), expected)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_ranks_get_the_first_ones_buffers(model_folder, sharding):
    port = free_port()
    buffers = in_processes(buffer_of_rank, [(rank, port, model_folder, sharding) for rank in range(2)])
    assert buffers == [[1.0, 2.0]] * 2


def buffer_of_rank(rank: int, port: int, model: str, sharding: str) -> list[float]:
    """A buffer that the model's files have, of which the second rank has read other numbers."""

    def load(*arguments: Any) -> torch.nn.Module:
        causal_lm = load_causal_lm(*arguments)
        causal_lm.register_buffer("saved", torch.tensor([1.0, 2.0]) if rank == 0 else torch.zeros(2))
        return causal_lm

    llm_rl_module.load_causal_lm = load
    with Ranks("gloo", num_ranks=2).process_group(rank, port):
        return load_learner(model, 2, sharding=sharding).module[DEFAULT_MODULE_ID].causal_lm.saved.tolist()


def test_in_bf16_layers_are_sent_in_bf16_and_gradients_summed_in_fp32(model_folder):
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(3)]
    exact = Ranks().gradients(model_folder, questions)
    plainly, sharded = (
        Ranks(*spread, dtype="bfloat16").gradients(model_folder, questions) for spread in ((), ("gloo", "fsdp2"))
    )
    assert {gradient.dtype for gradient in sharded.values()} == {torch.float32}

    def error(gradients):
        return sum((gradients[name] - exact[name]).square().sum() for name in exact).sqrt()

    assert 0 < error(sharded) < 1.5 * error(plainly)


def test_split_moments_in_the_memory_of_the_cpu(model_folder):
    """Two updates, between which the optimizer's state goes out and in again; tests/gpu has pinned memory."""
    questions, weights = [plain.random_question(seed, f"q{seed}") for seed in range(3)], []
    with Ranks("gloo").process_group(0, free_port()):
        for offload in (False, True):
            config = make_config(model_folder, "float32", sharding="fsdp2", optimizer_offload=offload)
            config.learners(num_learners=2)
            learner = build_learner(config)
            learner.update(make_batch(config, questions))
            learner._set_optimizer_state(learner._get_optimizer_state())
            moments = [state["exp_avg"] for state in learner.get_optimizer().state.values()]
            assert {isinstance(moment, DTensor) for moment in moments} == {not offload}
            learner.update(make_batch(config, questions))
            weights.append(whole_parameters(learner))
    assert_close(*weights, rtol=0.0)


def test_no_metric_is_split_among_learners(model_folder, monkeypatch):
    """RLlib averages metrics, which torch 2.11 cannot do with DTensors."""
    logged, log_value = [], MetricsLogger.log_value

    def record(self, key, value, **settings):
        logged.append(value)
        log_value(self, key, value, **settings)

    monkeypatch.setattr(MetricsLogger, "log_value", record)
    Ranks("gloo", "fsdp2").gradients(model_folder, [plain.random_question(0, "q0")])
    assert logged
    assert not [value for value in logged if isinstance(value, DTensor)]


@pytest.mark.parametrize("number", [np.float32(0.5), np.array(0.5, "float32"), torch.tensor(0.5)])
def test_a_state_may_have_tensors_without_dimensions(number):
    assert scatter_from_first(number, like=torch.tensor(0.0)).item() == 0.5


#: Of about 40 MB each, most of it in one tensor: an embedding, or the experts of a layer.
LARGE = {
    "llama": {"hidden_size": 320, "vocab_size": 2**15 + 1, "num_layers": 1},
    "qwen3_moe": {"hidden_size": 320, "moe_intermediate_size": 320, "num_experts": 32, "num_layers": 1},
}
#: MB that a process may take beside its tensors: buffers of gloo, and code that runs for the first time.
BESIDE = 24
#: Those that go on from the checkpoint of four ranks: how many, and their settings.
SUCCESSORS = ((3, {"sharding": "fsdp2", "optimizer_offload": True}), (2, {}), (1, {}))


@pytest.mark.slow
def test_only_the_first_rank_holds_more_than_its_part(tmp_path):
    """Four ranks load, save and restore, and other numbers of ranks go on from their checkpoint; no bit changes."""
    models = {"tiny": tiny_model(tmp_path / "tiny")}
    models |= {name: tiny_model(tmp_path / name, name, **keys) for name, keys in LARGE.items()}
    ports = [free_port() for _ in range(4 * len(models))]
    of_ranks = in_processes(load_save_restore, [(rank, models, ports) for rank in range(4)])
    for name, model in models.items():
        loaded, *others = [state for states, _ in of_ranks for state in states[name] if state is not None]
        assert loaded == digest(plain.load(model, torch.float32).state_dict())
        # Saved, restored by four and by three, of which one has the whole, by two who both have it, and by one.
        assert (len(others), len({*others})) == (6, 1)
    for _, peaks in of_ranks[1:]:
        for step in peaks:
            assert step["peak"] < step["limit"] + BESIDE, step


def load_save_restore(rank: int, models: dict[str, str], ports: list[int]) -> tuple[dict, list[dict[str, Any]]]:
    """What each rank does.

    Returns:
        the digests of its states, by model, and its peaks of memory, MB.
    """
    digests, peaks, free = {}, [], iter(ports)
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(-3, 2**20)  # M_MMAP_THRESHOLD: what is freed goes back to the system.
    for name, model in models.items():
        gc.collect()
        before = memory("VmRSS")
        with Ranks("gloo", num_ranks=4).process_group(rank, next(free)):
            learner, load = with_peak(load_learner, model, 4, sharding="fsdp2")
            part = sum(p.to_local().nbytes for p in learner.module[DEFAULT_MODULE_ID].parameters()) / 1e6
            digests[name] = [digest(whole_parameters(learner))]
            learner.update(make_batch(learner.config, [plain.random_question(0, "q0")]))
            _, save = with_peak(save_to, learner, f"{model}-saved")
            digests[name].append(digest_of(learner))
            del learner
            learner = load_learner(model, 4, sharding="fsdp2")
            _, restore = with_peak(learner.restore_from_path, f"{model}-saved")
            digests[name].append(digest_of(learner))
            del learner
        # Adam has two moments for each weight.
        found = {"load": (load, 2 * part), "save": (save, 3 * part), "restore": (restore, 2 * 3 * part)}
        for step, (peak, limit) in found.items() if name in LARGE else ():
            peaks.append({"model": name, "step": step, "peak": peak - before, "limit": limit})
        for num_ranks, settings in SUCCESSORS:
            port = next(free)
            if rank < num_ranks:
                with Ranks("gloo" if num_ranks > 1 else None, num_ranks=num_ranks).process_group(rank, port):
                    learner = load_learner(model, num_ranks, **settings)
                    learner.restore_from_path(f"{model}-saved")
                    digests[name].append(digest_of(learner))
                    del learner  # Otherwise it would count as memory from before the next model.
    return digests, peaks


def load_learner(model: str, num_ranks: int, **settings: Any) -> ARPOTorchLearner:
    gc.collect()  # An earlier learner is part of cycles.
    config = make_config(model, "float32", **settings)
    return build_learner(config.learners(num_learners=0 if num_ranks == 1 else num_ranks))


def save_to(learner: ARPOTorchLearner, path: str) -> None:
    """As a group of learners does it."""
    state = learner.get_state()
    if dist.get_rank() == 0:
        learner.save_to_path(path, state=state)
    dist.barrier()


def digest_of(learner: ARPOTorchLearner) -> str | None:
    """Of weights and moments; None for a learner that does not have the whole."""
    [optimizer] = learner._get_optimizer_state().values()
    moments = {f"{i}.{name}": v for i, values in optimizer["state"]["state"].items() for name, v in values.items()}
    weights = whole_parameters(learner)
    return digest(weights | moments) if weights else None


def digest(arrays: dict[str, Any]) -> str | None:
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(name.encode())
        found.update(torch.as_tensor(array).detach().numpy().tobytes())
    return found.hexdigest() if arrays else None


def with_peak(function: Callable[..., Any], *arguments: Any, **settings: Any) -> tuple[Any, float]:
    """The function's result, and the peak of this process's memory meanwhile, MB."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the earlier peak.
    return function(*arguments, **settings), memory("VmHWM")


def memory(key: str) -> float:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) / 1e3
