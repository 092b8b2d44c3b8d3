"""The probe of vLLM's newer model runner, driven on the CPU through vLLM's own request table and sampler pipeline.

Only the kernels are left out: the sampling itself, and the scatter of staged writes, which nothing here reads.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rllib_arpo.engine.vllm.arguments as arguments
from rllib_arpo.engine import entropy_windows
from rllib_arpo.engine.engine import EngineConfig, GenerationRequest
from rllib_arpo.engine.entropy_windows import take_entropies
from tests.helpers.entropy import token_entropy

interface = pytest.importorskip("vllm.v1.worker.gpu.sample.logits_processor")

V = 40


class Runner:
    """What the model runner does with requests and logits, on the CPU."""

    def __init__(self, max_num_reqs: int = 4):
        from vllm.v1.worker.gpu.sample.sampler import Sampler
        from vllm.v1.worker.gpu.states import RequestState

        from rllib_arpo.engine.vllm.entropy_processor_v2 import EntropyProcessorV2

        device = torch.device("cpu")
        self.states = RequestState(max_num_reqs, 64, 64, 0, V, device)
        config = SimpleNamespace(reasoning_config=None, speculative_config=None)
        self.probe = EntropyProcessorV2(config, interface.LogitsProcRequestState.from_request_state(self.states))
        self.sampler = Sampler(config, max_num_reqs, V, device, self.states, custom_logits_processors=[self.probe])
        self.generator = torch.Generator().manual_seed(0)

    def add(self, name: str, key: int, prompt: int, generated: int = 0, computed: int = 0, **settings) -> None:
        request = GenerationRequest(name, [1] * prompt, 50, **({"entropy_window": 3} | settings))
        self.states.add_request(name, prompt, [1] * (prompt + generated), computed, 50)
        params = arguments.sampling_params(request, key)
        params.update_from_generation_config({}, None)
        self.sampler.add_request(self.states.req_id_to_index[name], params)

    def remove(self, name: str) -> None:
        self.states.remove_request(name)

    def step(self, scheduled: dict[str, int], padded_to: int = 0) -> dict[str, torch.Tensor]:
        """Computes so many tokens of each request, in this order; returns the logits that the sampler was given."""
        slots = np.array([self.states.req_id_to_index[name] for name in scheduled], dtype=np.intp)
        self.states.num_computed_tokens_np[slots] += np.array(list(scheduled.values()), dtype=np.int32)
        lengths = np.zeros(max(padded_to, len(slots)), dtype=np.int32)
        lengths[: len(slots)] = self.states.num_computed_tokens_np[slots]
        logits = 3 * torch.randn(len(slots), V, generator=self.generator)
        mapping, nothing = torch.from_numpy(slots), torch.zeros(len(slots), dtype=torch.int64)
        given = logits.clone()
        context = (mapping, mapping, slots, nothing, nothing, nothing, lengths)
        self.sampler.apply_sampling_params(logits, *context)
        torch.testing.assert_close(logits, given, rtol=0, atol=0)
        return dict(zip(scheduled, given, strict=True))


@pytest.fixture
def runner(monkeypatch):
    from vllm.v1.worker.gpu import buffer_utils
    from vllm.v1.worker.gpu.sample import states

    def apply_temperature(logits, mapping, temperature):
        """What the kernel does."""
        chosen = temperature[mapping]
        logits /= torch.where(chosen == 0, 1.0, chosen)[:, None]

    monkeypatch.setattr(states, "apply_temperature", apply_temperature)
    # It needs pinned memory.
    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    monkeypatch.setattr(entropy_windows, "_WINDOWS", {})
    return Runner()


def test_each_token_of_the_window_is_measured_at_its_place(runner):
    runner.add("a", 1, prompt=5, temperature=0.7)
    seen = [runner.step({"a": n})["a"] for n in (5, 1, 1, 1, 1)]
    (entropies,) = take_entropies(None, [(1, 3)])
    torch.testing.assert_close(torch.tensor(entropies), torch.stack([token_entropy(z, 0.7) for z in seen[:3]]))
    assert runner.probe._windows == {}


def test_requests_of_a_batch_are_kept_apart_when_their_rows_move(runner):
    runner.add("a", 1, prompt=4)
    runner.add("greedy", 2, prompt=2, temperature=0.0)
    runner.add("unmeasured", 3, prompt=3, entropy_window=0, temperature=0.5)
    first = runner.step({"a": 4, "greedy": 2, "unmeasured": 3}, padded_to=4)
    runner.add("late", 4, prompt=6, entropy_window=1, entropy_estimator="top_k")
    second = runner.step({"late": 6, "unmeasured": 1, "greedy": 1, "a": 1})
    third = runner.step({"unmeasured": 1, "a": 1})
    taken = take_entropies(None, [(1, 3), (2, 2), (4, 1)])
    p = torch.softmax(second["late"], -1).sort(descending=True).values[:10]
    expected = [
        torch.stack([token_entropy(z["a"]) for z in (first, second, third)]),
        torch.stack([token_entropy(z["greedy"]) for z in (first, second)]),
        -(p * p.log()).sum()[None],
    ]
    for entropies, exact in zip(taken, expected, strict=True):
        torch.testing.assert_close(torch.tensor(entropies), exact)


def test_only_the_last_chunk_of_a_prompt_counts(runner):
    runner.add("a", 1, prompt=9)
    for n in (4, 4):
        runner.step({"a": n})
    last = runner.step({"a": 1})["a"]
    (entropies,) = take_entropies(None, [(1, 1)])
    torch.testing.assert_close(torch.tensor(entropies), token_entropy(last)[None])


def test_a_preempted_request_goes_on_where_it_was(runner):
    runner.add("a", 1, prompt=4)
    seen = [runner.step({"a": n})["a"] for n in (4, 1)]
    runner.remove("a")
    runner.add("other", 2, prompt=4, entropy_window=0)
    runner.add("a", 1, prompt=4, generated=2)
    # Its prompt and its two tokens are computed again, in two chunks; the first one's sample is dropped.
    runner.step({"other": 4, "a": 5})
    seen.append(runner.step({"a": 1})["a"])
    (entropies,) = take_entropies(None, [(1, 3)])
    torch.testing.assert_close(torch.tensor(entropies), torch.stack([token_entropy(z) for z in seen]))


def test_the_next_occupant_of_a_slot_inherits_nothing(runner):
    runner.add("a", 1, prompt=4)
    runner.step({"a": 4})
    slot = runner.states.req_id_to_index["a"]
    runner.remove("a")
    runner.add("b", 2, prompt=3, entropy_window=0)
    assert runner.states.req_id_to_index["b"] == slot
    runner.step({"b": 3})
    assert len(take_entropies(None, [(1, 1)])[0]) == 1
    assert entropy_windows._WINDOWS == {}


def test_a_preempted_request_whose_window_was_full_opens_none(runner):
    runner.add("a", 1, prompt=4, generated=3)
    assert (runner.probe._windows, entropy_windows._WINDOWS) == ({}, {})


@pytest.mark.parametrize(("variable", "probe"), [("0", "ENTROPY_PROCESSOR"), ("1", "ENTROPY_PROCESSOR_V2")])
def test_the_probe_follows_the_model_runner(llama_folder, monkeypatch, variable, probe):
    config = arguments.engine_args(EngineConfig(llama_folder, dtype="float32", max_context_tokens=512))
    config = config.create_engine_config()
    # Afterwards: here vLLM refuses the newer runner, which needs Triton.
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", variable)
    arguments.choose_entropy_processor(config)
    assert config.model_config.logits_processors == [getattr(arguments, probe)]


def test_vllm_loads_the_probe_by_its_name():
    from vllm.v1.worker.gpu.sample.logits_processor.loader import _load_v2_logitsprocs_by_fqcns

    (loaded,) = _load_v2_logitsprocs_by_fqcns([arguments.ENTROPY_PROCESSOR_V2])
    assert loaded.__name__ == "EntropyProcessorV2"
