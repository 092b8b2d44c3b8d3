"""vLLM's weight transfer but for what happens on the GPU: ranks, order of the steps, the whole way on a CPU."""

from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from transformers import AutoModelForCausalLM

from rllib_arpo.engine.engine import Finished, GenerationRequest
from rllib_arpo.engine.engine_thread import EngineThread
from rllib_arpo.engine.vllm import weight_transfer
from rllib_arpo.engine.vllm.weight_transfer import EngineGroup
from rllib_arpo.faults import Failure
from rllib_arpo.policy.checkpoint_names import expected_shapes
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from rllib_arpo.policy.sharded_state import whole_tensors
from rllib_arpo.weights import WEIGHT_SYNCS, weight_sync
from rllib_arpo.weights.snapshot import WeightSnapshot, WeightSyncError, load_and_verify, probe_tokens
from rllib_arpo.weights.weight_sync import arguments_of_load
from tests.engine import cpu_transfer
from tests.engine.conftest import reference, run, start_engine
from tests.helpers.clusters import own_ray
from tests.helpers.configs import small_config
from tests.helpers.models import tiny_model
from tests.helpers.weights import engine_log_probs, learner_log_probs, learner_weights, load, weights_of

PROMPTS = {"long": [10 + i % 40 for i in range(70)], "longer": [10 + i % 40 for i in range(80)], "short": [7, 8, 9]}


@pytest.fixture(scope="module", autouse=True)
def cpu_backend():
    cpu_transfer.register()
    yield
    del WEIGHT_SYNCS[cpu_transfer.NAME]


def test_the_engines_of_a_group_get_consecutive_ranks(monkeypatch):
    monkeypatch.setattr(weight_transfer.WeightTransferTrainerFactory, "trainer_init", lambda *_args, **_settings: None)
    calls, answers = [], [None, None, None]

    def call(*arguments):
        calls.append(arguments)
        return answers

    group = EngineGroup("ipc", {"w": torch.ones(2)}, None, call, world_sizes=[2, 1, 4])
    group.init_weight_transfer_engine({"rank_offset": 1, "world_size": 8})
    infos = [{"rank_offset": offset, "world_size": 8} for offset in (1, 3, 4)]
    assert calls == [("join_transfer", [(group.name, info) for info in infos])]
    answers[1:] = [Failure("Env runner 2 cannot join.", retry=True), Failure("Nor can 3.", retry=True)]
    with pytest.raises(RuntimeError, match=r"^Env runner 2 cannot join\. Nor can 3\.$"):
        group.init_weight_transfer_engine({"packed": False})


def test_tied_weights_are_sent_under_both_names_and_cast_before_they_travel():
    weight = torch.nn.Parameter(torch.full((2,), 1 / 3))
    sent = [(name, t.requires_grad, t.data_ptr()) for name, t in whole_tensors({"embed": weight, "head": weight})]
    assert sent == [("embed", False, weight.data_ptr()), ("head", False, weight.data_ptr())]
    ((name, tensor),) = whole_tensors({"w": weight}, torch.bfloat16)
    assert (name, tensor.dtype, tensor.tolist()) == ("w", torch.bfloat16, [0.333984375] * 2)


@pytest.mark.parametrize(("dtype", "announced"), [(None, torch.float32), (torch.bfloat16, torch.bfloat16)])
def test_engines_hear_what_is_sent_at_every_transfer(monkeypatch, dtype, announced):
    weights, sent = {"a": torch.ones(2, 3), "b": torch.ones(4)}, []

    class Trainer(SimpleNamespace):
        def send_weights(self):
            sent.extend([*self.source.metadata(), *((name, t.dtype, tuple(t.shape)) for name, t in self.source)])
            self.client.update_weights({"of": "vLLM"})

    monkeypatch.setattr(weight_transfer.WeightTransferTrainerFactory, "trainer_init", lambda _, **kw: Trainer(**kw))
    group = EngineGroup("ipc", weights, dtype, lambda *call: call, [1])
    expected = [("a", announced, (2, 3)), ("b", announced, (4,))]
    for version in range(2):
        sent.clear()
        snapshot = WeightSnapshot(version, None, np.zeros(0), np.zeros(0))
        method, ((loaded, timeout_s),) = group.send(
            whole_tensors(weights, dtype), partial(arguments_of_load, snapshot, 7.0)
        )
        assert (method, loaded.version, timeout_s) == ("load_weights", version, 7.0)
        assert loaded.weights.update_info == {"of": "vLLM"}
        assert sent == [*(weight_transfer.ParamMeta(*one) for one in expected), *expected]


class FakeGroup:
    """Takes its engines' weights. It fails if `fails`."""

    made: ClassVar[list] = []
    fails = False

    def __init__(self, backend, weights, dtype, call, world_sizes):
        self.arguments, self.sent, self.is_closed = (backend, world_sizes, dtype), 0, False
        self.name = f"group {len(self.made)}"
        self.made.append(self)

    def send(self, pairs, _arguments_of_load):
        self.types = {name: tensor.dtype for name, tensor in pairs}
        self.sent += 1
        if self.fails:
            raise RuntimeError("no link")
        return [None] * len(self.arguments[1])

    def close(self):
        self.is_closed = True


@pytest.fixture
def learner(model_folder, monkeypatch):
    """One with the whole model, on groups that are `FakeGroup.made`."""
    monkeypatch.setattr(weight_transfer, "EngineGroup", FakeGroup)
    monkeypatch.setattr(FakeGroup, "made", [])
    module = {DEFAULT_MODULE_ID: SimpleNamespace(causal_lm=AutoModelForCausalLM.from_pretrained(model_folder))}
    config = small_config(model_folder, tensor_parallel_size=2).language_model(dtype="bfloat16")
    return SimpleNamespace(module=module, config=config, weight_snapshot=lambda with_weights: None, engine_groups={})


def transfer(learner, **engines: str):
    return weight_sync._transfer(learner, backend="nccl", casts=True, engines=engines, timeout_s=7.0)


def test_a_learner_with_the_whole_model_sends_it_alone(learner, monkeypatch):
    assert transfer(learner, one="", two="") == [None, None]
    (group,) = FakeGroup.made
    assert group.arguments == ("nccl", [2, 2], torch.bfloat16)
    assert group.types == dict.fromkeys(learner.module[DEFAULT_MODULE_ID].causal_lm.state_dict(), torch.bfloat16)
    monkeypatch.setattr(FakeGroup, "fails", True)
    assert transfer(learner, one="group 0", two="group 0") == "RuntimeError: no link"
    assert learner.engine_groups == {}


def test_engines_stay_connected_until_one_of_them_has_left(learner):
    """ "three" is an engine of evaluation, which has a group of its own; "two" restarts."""

    def after(**engines: str) -> list[tuple[int, bool]]:
        transfer(learner, **engines)
        return [(group.sent, group.is_closed) for group in FakeGroup.made]

    assert after(one="", two="") == [(1, False)]
    assert after(three="") == [(1, False), (1, False)]
    assert after(one="group 0", two="group 0") == [(2, False), (1, False)]
    # It gets the weights alone, and joins the other again.
    assert after(two="") == [(2, True), (1, False), (1, False)]
    assert after(one="group 0", two="group 2") == [(2, True), (1, False), (1, True), (1, False)]
    assert after(three="group 1") == [(2, True), (2, False), (1, True), (1, False)]
    # Both restart.
    assert after(one="", two="") == [(2, True), (2, False), (1, True), (1, True), (1, False)]


class Engines:
    """Engines of one and of two workers, each in its thread as in an env runner, with three running requests each."""

    def __init__(self, folder: str):
        self.folder, self.joined, self._threads = folder, 0, [EngineThread(), EngineThread()]
        self._engines = [self._start(index) for index in range(2)]

    def _start(self, index: int):
        def start():
            engine = start_engine(self.folder, weight_transfer="nccl", tensor_parallel_size=index + 1)
            cpu_transfer.register_workers(engine)
            for name, prompt in PROMPTS.items():
                engine.submit(GenerationRequest(name, prompt, 40, seed=len(prompt), entropy_window=40))
            return engine

        return self._threads[index].call(start)

    def restart(self, index: int) -> None:
        self._threads[index].call(self._engines[index].close)
        self._engines[index] = self._start(index)

    def each(self, function, arguments=((), ())) -> list:
        zipped = zip(self._threads, self._engines, arguments, strict=True)
        return [call.result(300) for call in [thread.submit(function, engine, *own) for thread, engine, own in zipped]]

    def call(self, method, arguments) -> list:
        """What env runners do (`EngineGroup`)."""
        self.joined += method == "join_transfer"
        functions = {
            "join_transfer": lambda engine, _group, init_info: engine.join_transfer(init_info),
            "load_weights": lambda engine, snapshot, _timeout_s: load_and_verify(engine, snapshot, "float32"),
        }
        return self.each(functions[method], arguments)

    def connect(self) -> EngineGroup:
        return EngineGroup("nccl", load(self.folder).state_dict(), None, self.call, world_sizes=[1, 2])


def push(group: EngineGroup, folder: str, version: int) -> None:
    module = LLMRLModule(model_config={"model_name_or_path": folder, "dtype": "float32", "temperature": 1.0})
    probe = probe_tokens(module.vocab_size, 512)
    snapshot = WeightSnapshot(version, None, probe, module.score(probe))
    assert group.send(whole_tensors(module.causal_lm.state_dict()), partial(arguments_of_load, snapshot, 60.0)) == [
        None,
        None,
    ]


def six_steps(engine) -> None:
    for _ in range(6):
        assert not any(isinstance(event, Finished) for event in engine.step())


@pytest.mark.slow
def test_weights_arrive_between_two_steps_of_running_requests(folders, tmp_path):
    """Two pushes by one connection; then an engine restarts, and both join again, one of them in mid-request.

    Each token has the log-prob and the entropy of the weights whose version it bears (-1: the first ones), also in an
    engine that has got them as arrays.
    """
    models = [*folders, *(tiny_model(tmp_path / str(seed), seed=seed) for seed in (3, 4))]
    engines = Engines(models[0])
    group = engines.connect()
    for version in (1, 2):
        engines.each(six_steps)
        push(group, models[version], version)
    assert engines.joined == 1
    engines.restart(1)
    group.close()
    group = engines.connect()
    engines.each(six_steps)
    push(group, models[3], 3)
    finished = engines.each(run)
    # Each probe makes one step more.
    versions = [[-1] * 6 + [1] * 7 + [2] * 7 + [3] * 20, [-1] * 6 + [3] * 34]
    for of_engine, expected in zip(finished, versions, strict=True):
        assert [of_engine[name].weight_versions.tolist() for name in PROMPTS] == [expected] * len(PROMPTS)
    sampled = [(prompt, of_engine[name]) for of_engine in finished for name, prompt in PROMPTS.items()]
    for version, folder in zip((-1, 1, 2, 3), models, strict=True):
        weights = weights_of(folder)
        engines.each(lambda engine, w=weights, v=version: engine.update_weights(w.items(), v))
        for prompt, f in sampled:
            mine = f.weight_versions == version
            log_probs, entropies = reference(folder, prompt, f.token_ids, 1.0)
            np.testing.assert_allclose(f.log_probs[mine], log_probs[mine], atol=1e-4)
            np.testing.assert_allclose(f.entropies[mine], entropies[mine], atol=1e-4)
            ids = [*prompt, *f.token_ids.tolist()]
            for scores in engines.each(lambda engine, ids=ids: engine.score(ids)):
                np.testing.assert_allclose(f.log_probs[mine], scores[len(prompt) - 1 :][mine], atol=1e-4)
    group.close()
    engines.each(lambda engine: engine.close())


def break_engine(runner) -> None:
    runner.engine.receive_weights = lambda update_info, version: 1 / 0


def break_groups(learner, **_kwargs) -> None:
    for group in learner.engine_groups.values():
        group.send = lambda *_arguments: 1 / 0


def check_versions(algorithm, models: dict[int, torch.nn.Module]) -> int:
    """Each first turn of the last questions has the log-probs of its weights; returns the oldest weights' version."""
    versions = set()
    for sampled in algorithm.last_sampled:
        prompt = sampled.tree.prompt.tolist()
        for turn in (sampled.tree.path(str(root))[0] for root in range(2)):
            ids = torch.tensor([[*prompt, *turn.token_ids.tolist()]])
            for version in {*turn.weight_versions.tolist()}:
                versions.add(version)
                mine = turn.weight_versions == version
                with torch.no_grad():
                    logits = models[version](ids).logits[0, len(prompt) - 1 : -1]
                expected = logits.log_softmax(-1)[torch.arange(len(turn.token_ids)), turn.token_ids.tolist()]
                np.testing.assert_allclose(turn.log_probs[mine], expected[mine], atol=1e-3)
    return min(versions)


@pytest.mark.slow
def test_the_whole_way_through_ray(model_folder):
    """Engines sample during the updates, the engine that fails in a transfer restarts, and a broken link ends the run.

    The two learners share the model: both assemble each weight, also those that the failed transfer has left.
    """
    with own_ray(num_cpus=3, log_to_driver=False):
        config = small_config(model_folder, engine="vllm", kv_cache_memory_bytes=16 << 20)
        config.language_model(weight_sync=cpu_transfer.NAME, engine_num_threads=1)
        config.learners(num_learners=2).training(sharding="fsdp2", learner_class=cpu_transfer.SendingLearner)
        config.env_runners(num_env_runners=1, env_runner_cls=cpu_transfer.ReceivingEnvRunner)
        algorithm = config.adaptive_rollout(max_weight_lag=1).build_algo()
        models, oldest, groups = {}, [], set()
        for iteration in range(4):
            models[iteration] = load(model_folder)
            models[iteration].load_state_dict({k: torch.tensor(v) for k, v in learner_weights(algorithm).items()})
            if iteration == 2:
                algorithm.env_runner_group.foreach_env_runner(break_engine, local_env_runner=False)
            algorithm.train()
            assert algorithm._weight_version == iteration + 1
            oldest.append(check_versions(algorithm, models))
            groups |= {
                *algorithm.learner_group.on_first(lambda learner: [g.name for g in learner.engine_groups.values()])
            }
        assert oldest[:2] == [0, 0]  # The second batch was sampled during the first update, at least in part.
        assert len(groups) == 2
        (computed,) = engine_log_probs(algorithm)
        np.testing.assert_allclose(computed, learner_log_probs(algorithm), atol=1e-3)
        algorithm.learner_group.foreach_learner(break_groups)
        with pytest.raises(WeightSyncError, match=r"^weight_sync='nccl' failed: ZeroDivisionError: division by zero$"):
            algorithm.train()
        assert learner_weights(algorithm).keys() == expected_shapes(model_folder).keys()
        algorithm.stop()
