"""Where learners and engines compute decides how weights travel."""

from types import SimpleNamespace

import pytest
import ray
from packaging.version import Version

from rllib_arpo import ARPOConfig
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from rllib_arpo.weights import transports
from rllib_arpo.weights.transports import choose_transport, shares_gpu

ARRAYS = "in_process_reload"


def placed(learners: int, learner_gpus: float, env_runners: int, env_runner_gpus: float, **changes) -> ARPOConfig:
    config = ARPOConfig().learners(num_learners=learners, num_gpus_per_learner=learner_gpus)
    config.env_runners(num_env_runners=env_runners, num_gpus_per_env_runner=env_runner_gpus)
    return config.update_from_dict(changes)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        # Learners, GPUs of each, env runners, GPUs of each.
        ((0, 0.5, 1, 0.5), "ipc"),
        ((1, 0.5, 1, 0.5), "ipc"),
        ((1, 0.4, 3, 0.2), "ipc"),
        # The third engine is on another GPU.
        ((1, 0.5, 3, 0.25), ARRAYS),
        # Ray may put these two on different GPUs.
        ((1, 0.6, 1, 0.6), ARRAYS),
        ((1, 1, 1, 1), "nccl"),
        ((4, 1, 4, 1), "nccl"),
        ((4, 1, 2, 2), "nccl"),
        # NCCL refuses two of its ranks on one GPU.
        ((1, 1, 2, 0.5), ARRAYS),
        ((1, 0.5, 1, 1), ARRAYS),
        # In one process, or without a GPU.
        ((0, 1, 0, 0), ARRAYS),
        ((1, 1, 1, 0), ARRAYS),
        ((1, 0, 1, 1), ARRAYS),
        ((0, 0, 1, 0), ARRAYS),
    ],
)
def test_the_transport_of_a_placement(where, expected):
    assert choose_transport(placed(*where)) == expected


@pytest.mark.parametrize(("where", "changes", "expected"), [
    ((1, 1, 1, 1), {"engine": "scripted"}, ARRAYS),
    ((1, 1, 1, 1), {"max_weight_lag": 1}, "nccl"),
    ((1, 0.5, 1, 0.5), {"max_weight_lag": 1}, "ipc"),
    ((1, 1, 1, 1), {"lora": {"r": 8}}, ARRAYS),
    ((1, 1, 1, 1), {"weight_sync": ARRAYS}, ARRAYS),
    ((1, 0, 1, 0), {"weight_sync": "nccl"}, "nccl"),
    ((1, 1, 1, 1), {"evaluation_num_env_runners": 1}, "nccl"),
    # Evaluation's engines share one GPU, or have no room on it.
    ((1, 1, 1, 1), {"evaluation_num_env_runners": 2, "evaluation_config": {"num_gpus_per_env_runner": 0.5}}, ARRAYS),
    # Each of its engines has one GPU, where the learner would count two.
    ((1, 1, 1, 2), {"engine_kwargs": {"tensor_parallel_size": 2}, "evaluation_num_env_runners": 1,
                    "evaluation_config": {"engine_kwargs": {"gpu_memory_utilization": 0.5}}}, ARRAYS),
    ((1, 0.5, 1, 0.25), {"evaluation_num_env_runners": 1}, "ipc"),
    ((1, 0.5, 1, 0.5), {"evaluation_num_env_runners": 1}, ARRAYS),
])  # fmt: skip
def test_other_settings_that_decide(where, changes, expected):
    assert choose_transport(placed(*where, **changes)) == expected


@pytest.mark.parametrize(("gpu_ids", "expected"), [([0], "nccl"), ([], ARRAYS), (None, ARRAYS)])
def test_a_learner_in_the_driver_has_a_gpu_of_its_own_if_ray_has_given_it_one(monkeypatch, gpu_ids, expected):
    """As in a trial of Tune; None: Ray does not run."""
    monkeypatch.setattr(ray, "is_initialized", lambda: gpu_ids is not None)
    monkeypatch.setattr(ray, "get_gpu_ids", lambda: gpu_ids)
    monkeypatch.setattr(ray, "nodes", lambda: [node_with(1), node_with(0)])
    assert choose_transport(placed(0, 1, 1, 1)) == expected
    assert choose_transport(placed(0, 0.5, 1, 0.5)) == "ipc"


def node_with(gpus: float, *, alive: bool = True) -> dict:
    return {"Alive": alive, "Resources": {"CPU": 8.0} | ({"GPU": gpus} if gpus else {})}


@pytest.mark.parametrize(
    ("nodes", "in_driver", "in_actor"),
    [
        ([node_with(1)], "ipc", "ipc"),
        # The learner in the driver is on the first GPU, the engine may be on the second.
        ([node_with(2)], ARRAYS, "ipc"),
        ([node_with(1), node_with(1)], ARRAYS, ARRAYS),
        ([node_with(1), node_with(1, alive=False)], "ipc", "ipc"),
    ],
)
def test_memory_is_shared_if_ray_can_place_learner_and_engine_on_no_other_gpu(monkeypatch, nodes, in_driver, in_actor):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_gpu_ids", list)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert choose_transport(placed(0, 0.5, 1, 0.5)) == in_driver
    assert choose_transport(placed(1, 0.5, 1, 0.5)) == in_actor


@pytest.mark.parametrize(
    ("version", "expected"), [("0.26.0", ARRAYS), ("0.32.0", "ipc"), ("0.33.1", "ipc"), (None, ARRAYS)]
)
def test_the_transfer_needs_a_vllm_that_is_known_to_have_it(monkeypatch, version, expected):
    monkeypatch.setattr(transports, "vllm_version", lambda: version and Version(version))
    assert choose_transport(placed(1, 0.5, 1, 0.5)) == expected


@pytest.mark.parametrize(
    ("where", "shares"),
    [
        ((1, 0.5, 1, 0.5), True),
        ((1, 1, 2, 0.5), True),
        ((0, 1, 0, 0), True),
        ((0, 0, 0, 0), False),
        ((1, 1, 1, 1), False),
        ((1, 1, 1, 2), False),
        ((1, 1, 1, 0), False),
    ],
)
def test_an_engine_shares_its_gpu_with_a_learner_or_another_engine(where, shares):
    config = placed(*where)
    assert shares_gpu(config) == shares
    env_runner = SimpleNamespace(config=config, worker_index=1)
    assert ARPOEnvRunner._engine_args(env_runner)[1].shares_gpu == shares
