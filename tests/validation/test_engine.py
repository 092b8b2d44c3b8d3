"""Engines, weight transfer and sharding: ARPO refuses settings that do not fit together in one sentence."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest
from packaging.version import Version

from rllib_arpo.engine.vllm_versions import vllm_version
from tests.helpers.configs import small_config
from tests.validation.sentences import message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"weight_sync": "rdma"},
            "weight_sync='rdma': must be one of 'auto', 'in_process_reload', 'nccl', 'ipc'.",
        ),
        (
            {"dtype": "float16"},
            "dtype='float16': gradients would underflow, since the loss is not scaled; use 'bfloat16'.",
        ),
        ({"sharding": "ddp"}, "sharding='ddp': must be one of 'none', 'fsdp2'."),
        (
            {"optimizer_offload": True},
            "optimizer_offload=True: the learners have no GPU; set num_gpus_per_learner.",
        ),
        (
            {"num_learners": 2, "num_gpus_per_learner": 0.5},
            "num_gpus_per_learner=0.5: Ray may put several of the 2 learners on one GPU, which NCCL refuses; use "
            "num_learners=0, or more than 0.5.",
        ),
        (
            {"sharding": "fsdp2", "num_learners": 1},
            "sharding='fsdp2': needs learners to share the model, num_learners >= 2 and not 1.",
        ),
        ({"weight_sync": "ipc"}, "weight_sync='ipc': needs engine='vllm', not 'scripted'."),
        (
            {"weight_sync": "ipc", "engine": "vllm"},
            "weight_sync='ipc': needs engines in other processes than the learner's, num_env_runners >= 1.",
        ),
        (
            {"weight_sync": "nccl", "engine": "vllm", "num_env_runners": 1, "max_weight_lag": 1},
            "weight_sync='nccl': needs idle engines; with max_weight_lag use 'in_process_reload'.",
        ),
        (
            {"weight_sync": "nccl", "engine": "vllm", "num_env_runners": 1, "num_gpus_per_env_runner": 1},
            "weight_sync='nccl': needs separate GPUs, at least one each, not num_gpus_per_learner=0 and "
            "num_gpus_per_env_runner=1.",
        ),
        (
            {"weight_sync": "ipc", "engine": "vllm", "num_env_runners": 1, "num_gpus_per_env_runner": 0.5},
            "weight_sync='ipc': needs a GPU that is shared, fractions of one, not num_gpus_per_learner=0 and "
            "num_gpus_per_env_runner=0.5.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"pipeline_parallel_size": 2}},
            "engine_kwargs['pipeline_parallel_size']=2: a tree is forked between two tokens, and pipeline stages work "
            "on several steps at once; use tensor_parallel_size.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"async_scheduling": True}},
            "engine_kwargs['async_scheduling']=True: the engine would run a step ahead of finished and forked "
            "requests, and wait for that step where the sampler reads entropies.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"distributed_executor_backend": "ray"}},
            "engine_kwargs['distributed_executor_backend']='ray': the engine's workers are processes of its env "
            "runner, on the GPUs that Ray gave to it.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"tensor_parallel_size": 2}, "num_gpus_per_env_runner": 1},
            "engine_kwargs['tensor_parallel_size']=2: needs as many GPUs in every env runner, and "
            "num_gpus_per_env_runner=1.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"tensor_parallel_size": 1.5}},
            "engine_kwargs['tensor_parallel_size']=1.5: must be an integer >= 1.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"logprobs_mode": "raw_logits"}},
            "engine_kwargs may not set 'logprobs_mode': it follows from the configuration.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"watermark_config": {"algorithm": "gumbel"}}},
            "engine_kwargs['watermark_config']={'algorithm': 'gumbel'}: training samples from the model's own "
            "distribution, without a watermark.",
        ),
        ({"sleep_level": 3}, "sleep_level=3: must be one of 0, 1, 2."),
        ({"sleep_level": True}, "sleep_level=True: must be one of 0, 1, 2."),
        (
            {"engine": "vllm", "sleep_level": 1},
            "sleep_level=1: the engines have no GPU to share; set num_gpus_per_env_runner.",
        ),
        (
            {"sleep_level": 2, "max_weight_lag": 1, "num_env_runners": 1},
            "sleep_level=2: with max_weight_lag the engines go on during the update.",
        ),
        (
            {"engine_kwargs": {"top_p": 0.9}},
            "engine_kwargs['top_p']: training samples from the whole distribution, without top_p.",
        ),
    ],
)
def test_one_sentence_names_the_key(model_folder, changes, expected):
    assert message(small_config(model_folder).update_from_dict(changes)) == expected


@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_learners_that_share_the_model_may_send_it(model_folder, unknown_cluster, sharding):
    small_config(model_folder).update_from_dict(
        {
            "sharding": sharding,
            "num_learners": 2,
            "num_gpus_per_learner": 1,
            "weight_sync": "nccl",
            "engine": "vllm",
            "num_env_runners": 1,
            "num_gpus_per_env_runner": 1,
        }
    ).validate()


def test_the_weight_transfer_of_an_older_vllm_is_refused(model_folder, monkeypatch):
    changes = {"weight_sync": "nccl", "engine": "vllm", "num_env_runners": 1}
    config = small_config(model_folder).update_from_dict(
        {**changes, "num_gpus_per_learner": 1, "num_gpus_per_env_runner": 1}
    )
    assert vllm_version() >= Version("0.32")
    monkeypatch.setattr("rllib_arpo.engine.vllm_versions.version", lambda build: {"vllm": "0.26.0"}[build])
    assert message(config) == (
        "weight_sync='nccl': needs vLLM 0.32 or newer, and 0.26.0 is installed; use 'in_process_reload'."
    )


def test_a_driver_without_vllm_leaves_its_version_to_the_engines(monkeypatch):
    def missing(build: str) -> str:
        raise PackageNotFoundError(build)

    monkeypatch.setattr("rllib_arpo.engine.vllm_versions.version", missing)
    assert vllm_version() is None
