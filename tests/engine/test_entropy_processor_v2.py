"""The probe of vLLM's newer model runner, driven on the CPU through vLLM's own request table and sampler pipeline.

Only the kernels are left out: the sampling itself, and the scatter of staged writes, which nothing here reads.
"""

import math
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rllib_arpo.engine.vllm.arguments as arguments
from rllib_arpo.engine.engine import EngineConfig, GenerationRequest
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
        #: Request -> what was measured, token by token; None: nothing.
        self.entropies: dict[str, list[float | None]] = defaultdict(list)

    def add(self, name: str, prompt: int, generated: int = 0, computed: int = 0, **settings) -> None:
        request = GenerationRequest(name, [1] * prompt, 50, **({"entropy_window": 3} | settings))
        self.states.add_request(name, prompt, [1] * (prompt + generated), computed, 50)
        params = arguments.sampling_params(request)
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
        measured, self.probe.measured = self.probe.measured, None
        measured = torch.full((len(slots),), torch.nan) if measured is None else measured
        for name, entropy in zip(scheduled, measured.tolist(), strict=True):
            self.entropies[name].append(None if math.isnan(entropy) else entropy)
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
    return Runner()


def entropies(*logits: torch.Tensor, temperature: float = 1.0) -> list[float]:
    return [pytest.approx(token_entropy(z, temperature).item(), abs=1e-5) for z in logits]


def test_each_token_of_the_window_is_measured_at_its_place(runner):
    runner.add("a", prompt=5, temperature=0.7)
    seen = [runner.step({"a": n})["a"] for n in (5, 1, 1, 1, 1)]
    assert runner.entropies["a"] == [*entropies(*seen[:3], temperature=0.7), None, None]
    assert runner.probe._windows == {}


def test_requests_of_a_batch_are_kept_apart_when_their_rows_move(runner):
    runner.add("a", prompt=4)
    runner.add("greedy", prompt=2, temperature=0.0)
    runner.add("unmeasured", prompt=3, entropy_window=0, temperature=0.5)
    first = runner.step({"a": 4, "greedy": 2, "unmeasured": 3}, padded_to=4)
    runner.add("late", prompt=6, entropy_window=1, entropy_estimator="top_k")
    second = runner.step({"late": 6, "unmeasured": 1, "greedy": 1, "a": 1})
    third = runner.step({"unmeasured": 1, "a": 1})
    p = torch.softmax(second["late"], -1).sort(descending=True).values[:10]
    assert runner.entropies == {
        "a": entropies(first["a"], second["a"], third["a"]),
        "greedy": entropies(first["greedy"], second["greedy"]),
        "unmeasured": [None] * 3,
        "late": [pytest.approx(-(p * p.log()).sum().item(), abs=1e-5)],
    }


def test_only_the_last_chunk_of_a_prompt_counts_and_a_preempted_request_goes_on_where_it_was(runner):
    runner.add("a", prompt=9)
    for n in (4, 4):
        runner.step({"a": n})
    seen = [runner.step({"a": 1})["a"] for _ in range(2)]
    slot = runner.states.req_id_to_index["a"]
    runner.remove("a")
    # The next occupant of its slot inherits nothing.
    runner.add("other", prompt=4, entropy_window=0)
    assert runner.states.req_id_to_index["other"] == slot
    runner.add("a", prompt=9, generated=2)
    # Its prompt and its two tokens are computed again, in two chunks; the first one's sample is dropped.
    runner.step({"other": 4, "a": 10})
    seen += [runner.step({"a": 1})["a"], runner.step({"a": 1})["a"]]
    assert runner.entropies["a"] == [None, None, *entropies(*seen[:2]), None, *entropies(seen[2]), None]
    assert runner.entropies["other"] == [None]
    runner.add("full", prompt=4, generated=3)
    assert runner.probe._windows == {}


def test_entropies_leave_with_the_log_probs_of_their_step(runner):
    """The wrapper of vLLM's sampler puts those of this step in the place of the ranks, and none of an earlier one."""
    from vllm.v1.outputs import LogprobsTensors

    from rllib_arpo.engine.vllm.entropy_processor import send_entropies

    ranks = torch.tensor([7])

    class Sampler:
        logits_processors = runner.sampler.logits_processors
        penalties_state = "its own"

        def __call__(self, _logits, measured):
            runner.probe.measured = measured
            return SimpleNamespace(logprobs_tensors=LogprobsTensors(torch.tensor([[3]]), torch.tensor([[-0.5]]), ranks))

    worker = SimpleNamespace(model_runner=SimpleNamespace(sampler=Sampler()))
    send_entropies(worker)
    sampler = worker.model_runner.sampler
    assert sampler.penalties_state == "its own"
    for measured, expected in ((torch.tensor([1.5]), [1.5]), (None, [7])):
        tensors = sampler(None, measured).logprobs_tensors
        assert (tensors.selected_token_ranks.tolist(), tensors.logprobs.tolist()) == (expected, [[-0.5]])


@pytest.mark.parametrize(("variable", "probe"), [("0", "ENTROPY_PROCESSOR"), ("1", "ENTROPY_PROCESSOR_V2")])
def test_the_probe_follows_the_model_runner_and_is_loaded_by_its_name(llama_folder, monkeypatch, variable, probe):
    from vllm import envs
    from vllm.v1.worker.gpu.sample.logits_processor.loader import _load_v2_logitsprocs_by_fqcns

    envs.disable_envs_cache()  # An engine that was built in this process has cached all variables.
    config = arguments.engine_args(EngineConfig(llama_folder, dtype="float32", max_context_tokens=512))
    config = config.create_engine_config()
    # Afterwards: here vLLM refuses the newer runner, which needs Triton.
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", variable)
    arguments.choose_entropy_processor(config)
    (name,) = config.model_config.logits_processors
    assert name == getattr(arguments, probe)
    if variable == "1":
        (loaded,) = _load_v2_logitsprocs_by_fqcns([name])
        assert loaded.__name__ == "EntropyProcessorV2"
