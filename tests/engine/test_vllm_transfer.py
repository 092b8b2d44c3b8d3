"""vLLM's weight transfer but for what happens on the GPU: ranks, order of the steps, the whole way on a CPU."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from transformers import AutoModelForCausalLM

from rllib_arpo.engine.vllm import weight_transfer
from rllib_arpo.engine.vllm.weight_transfer import INIT_INFOS, EngineGroupClient, send_weights
from rllib_arpo.policy.checkpoint_names import expected_shapes
from rllib_arpo.policy.sharded_state import whole_tensors
from rllib_arpo.weights import WEIGHT_SYNCS, weight_sync
from rllib_arpo.weights.snapshot import WeightSyncError
from tests.engine import cpu_transfer
from tests.helpers.clusters import own_ray
from tests.helpers.configs import small_config
from tests.helpers.weights import engine_log_probs, learner_log_probs, learner_weights


@pytest.fixture(scope="module", autouse=True)
def cpu_backend():
    cpu_transfer.register()
    yield
    del WEIGHT_SYNCS[cpu_transfer.BACKEND]


def test_the_engines_of_a_group_get_consecutive_ranks():
    calls = []
    client = EngineGroupClient(lambda *call: calls.append(call), world_sizes=[2, 1, 4])
    client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 8})
    client.update_weights({"names": ["w"]})
    client.finish_weight_update("7")
    assert calls == [
        (
            "init_weight_transfer_engine",
            [{"init_info": {"rank_offset": offset, "world_size": 8}} for offset in (1, 3, 4)],
        ),
        ("update_weights", [{"update_info": {"names": ["w"]}}] * 3),
        ("finish_weight_update", [{}] * 3),
    ]


def test_what_the_trainers_begin_with():
    nccl = INIT_INFOS["nccl"](3)
    assert (nccl.rank, nccl.world_size, nccl.is_sender, nccl.backend) == (0, 4, True, "nccl")
    assert nccl.master_address
    assert 0 < nccl.master_port < 65536
    assert (INIT_INFOS["ipc"](3).rank, INIT_INFOS["ipc"](3).backend) == (0, "ipc")


def test_tied_weights_are_sent_under_both_names_and_cast_before_they_travel():
    weight = torch.nn.Parameter(torch.full((2,), 1 / 3))
    sent = [(name, t.requires_grad, t.data_ptr()) for name, t in whole_tensors({"embed": weight, "head": weight})]
    assert sent == [("embed", False, weight.data_ptr()), ("head", False, weight.data_ptr())]
    ((name, tensor),) = whole_tensors({"w": weight}, torch.bfloat16)
    assert (name, tensor.dtype, tensor.tolist()) == ("w", torch.bfloat16, [0.333984375] * 2)


@pytest.mark.parametrize(("dtype", "announced"), [(None, torch.float32), (torch.bfloat16, torch.bfloat16)])
def test_engines_hear_what_is_sent(monkeypatch, dtype, announced):
    weights, sent = {"a": torch.ones(2, 3), "b": torch.ones(4)}, []

    class Trainer(SimpleNamespace):
        def send_weights(self):
            sent.extend([*self.source.metadata(), *((name, t.dtype, tuple(t.shape)) for name, t in self.source)])

    def trainer_init(_info, *, client, source):
        return Trainer(source=source, shutdown=lambda: None)

    monkeypatch.setattr(weight_transfer.WeightTransferTrainerFactory, "trainer_init", trainer_init)
    send_weights("ipc", weights, whole_tensors(weights, dtype), lambda *_call: None, [1], dtype)
    expected = [("a", announced, (2, 3)), ("b", announced, (4,))]
    assert sent == [*(weight_transfer.ParamMeta(*one) for one in expected), *expected]


@pytest.mark.parametrize("fails", [False, True])
def test_a_learner_with_the_whole_model_sends_it_alone(model_folder, monkeypatch, fails):
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    module = {DEFAULT_MODULE_ID: SimpleNamespace(causal_lm=model)}
    config = small_config(model_folder, tensor_parallel_size=2).language_model(dtype="bfloat16")
    learner = SimpleNamespace(module=module, config=config, weight_snapshot=lambda with_weights: with_weights)
    sent = []

    def send(backend, _weights, pairs, _call, world_sizes, dtype):
        sent.extend([(backend, world_sizes, dtype), {name: tensor.dtype for name, tensor in pairs}])
        if fails:
            raise RuntimeError("no link")

    monkeypatch.setattr(weight_transfer, "send_weights", send)
    answer = weight_sync._transfer(learner, backend="nccl", casts=True, actors=["one", "two"])
    assert answer == ("RuntimeError: no link" if fails else False)
    assert sent == [("nccl", [2, 2], torch.bfloat16), dict.fromkeys(model.state_dict(), torch.bfloat16)]


@pytest.mark.slow
def test_the_whole_way_through_ray(model_folder):
    """Remote learners and a remote env runner with a vLLM engine: an update, then a transfer that fails.

    The two learners share the model: both assemble each weight, also those that the failed transfer has left.
    """
    with own_ray(num_cpus=3, log_to_driver=False):
        config = small_config(model_folder, engine="vllm", kv_cache_memory_bytes=16 << 20)
        config.language_model(weight_sync=cpu_transfer.BACKEND, engine_num_threads=1)
        config.learners(num_learners=2).training(sharding="fsdp2", learner_class=cpu_transfer.SendingLearner)
        config.env_runners(num_env_runners=1, env_runner_cls=cpu_transfer.ReceivingEnvRunner)
        algorithm = config.build_algo()
        algorithm.train()
        assert algorithm._weight_version == 1
        (computed,) = engine_log_probs(algorithm)
        np.testing.assert_allclose(computed, learner_log_probs(algorithm), atol=1e-3)

        def break_transfer(runner):
            runner.engine.transfer_weights = lambda method, arguments: 1 / 0

        algorithm.env_runner_group.foreach_env_runner(break_transfer, local_env_runner=False)
        message = (
            r"^weight_sync='cpu_test' failed: RuntimeError: Env runner 1 failed in init_weight_transfer_engine: "
            r"ZeroDivisionError: division by zero"
        )
        with pytest.raises(WeightSyncError, match=message):
            algorithm.train()
        assert learner_weights(algorithm).keys() == expected_shapes(model_folder).keys()
        algorithm.stop()
