"""Checkpoints of learners on other machines than the driver: here nodes with addresses of their own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
import ray
from pyarrow.fs import FSSpecHandler, PyFileSystem
from ray import tune
from ray.cluster_utils import Cluster
from ray.rllib.utils import checkpoints as rllib_checkpoints
from ray.train._internal.storage import StorageContext

import rllib_arpo
from rllib_arpo import ARPO, ARPOConfig
from rllib_arpo.files import CHECKSUMS
from tests.helpers.configs import small_config
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.scripted_env import ANSWER
from tests.helpers.weights import learner_weights

pytestmark = pytest.mark.slow

NODES = ("127.0.0.2", "127.0.0.3")
#: Each process has its own files there: a disk that the machines do not share.
NOT_SHARED = PyFileSystem(FSSpecHandler(fsspec.filesystem("memory")))


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """In a folder of its own: a `ray.init` of other tests on this machine would find the address in Ray's."""
    ray.shutdown()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        yield from started()


def started() -> Iterator[None]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    for address in NODES:
        made.add_node(node_ip_address=address, num_cpus=1, resources={"for_learners": 1})
    ray.init(made.address, log_to_driver=False)
    rllib_arpo.register()
    tune.register_env("Faulty-v0", FaultyEnv)
    try:
        yield
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def config(model_folder) -> ARPOConfig:
    config = small_config(model_folder, vocab_size=256, end_token_id=ANSWER, end_probability=0.3)
    config.environment("Faulty-v0", env_config={"rewards": {"0": 1.0}}).evaluation(evaluation_config={"env_config": {}})
    config.language_model(dtype="float64")
    return config.learners(num_learners=2, custom_resources_per_learner={"for_learners": 1})


def storage(folder: str, filesystem: PyFileSystem | None = None) -> StorageContext:
    return StorageContext(folder, "run", storage_filesystem=filesystem, trial_dir_name="trial")


def nodes(algorithm: ARPO) -> set[str]:
    found = algorithm.learner_group.foreach_learner(lambda _learner: ray.util.get_node_ip_address())
    return {result.get() for result in found}


def fail_to_save(algorithm: ARPO, folder: Path) -> None:
    """The disk is full: neither the run's folder nor a folder for temporary files keeps a part of the checkpoint."""
    (temporary := folder / "temporary").mkdir()

    def arm(learner) -> None:
        def save_to_path(path, **_kwargs):
            Path(path).mkdir(parents=True)
            raise OSError("the disk is full")

        tempfile.tempdir = str(temporary)
        learner.saves, learner.save_to_path = learner.save_to_path, save_to_path

    def disarm(learner) -> None:
        tempfile.tempdir, learner.save_to_path = None, learner.saves

    before = {*(folder / "run" / "trial").iterdir()}
    algorithm.learner_group.foreach_learner(arm)
    tempfile.tempdir = str(temporary)
    try:
        with pytest.raises(RuntimeError, match=r"A learner could not save its state to .*: the disk is full$"):
            algorithm.save()
    finally:
        tempfile.tempdir = None
    algorithm.learner_group.foreach_learner(disarm)
    assert [*temporary.iterdir()] == []
    assert {*(folder / "run" / "trial").iterdir()} == before


@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_a_run_on_several_machines_goes_on_with_one_learner_less(config, tmp_path, monkeypatch, sharding):
    def refused(*_args, **_kwargs):
        raise AssertionError("RLlib's way through the driver takes at most 1 GiB.")

    monkeypatch.setattr(rllib_checkpoints, "sync_dir_between_nodes", refused)
    config.training(sharding=sharding)
    algorithm = ARPO(config.copy(copy_frozen=False), storage=storage(str(tmp_path)))
    assert nodes(algorithm) == {*NODES}
    algorithm.train()
    with pytest.raises(ValueError, match=r"checkpoint_dir: .* save_to_path"):
        algorithm.save(str(tmp_path / "own"))
    saved, weights = algorithm.save(), learner_weights(algorithm)
    fail_to_save(algorithm, tmp_path)
    assert (tmp_path / "run" / "trial" / "checkpoint_000000" / "learner_group" / "learner" / CHECKSUMS).is_file()
    algorithm.train()
    uninterrupted = learner_weights(algorithm)
    algorithm.restore(saved)
    for name, value in learner_weights(algorithm).items():
        np.testing.assert_array_equal(value, weights[name])
    with pytest.raises(
        ValueError, match=r"^The learners on 127\.0\.0\.2, 127\.0\.0\.3 do not see checkpoint/learner_g"
    ):
        algorithm.save_to_path("checkpoint", filesystem=NOT_SHARED)
    algorithm.stop()

    config.learners(num_learners=1).training(sharding="none")
    resumed = config.build_algo()
    resumed.restore_from_path(saved.checkpoint.path)
    resumed.train()
    for name, value in learner_weights(resumed).items():
        np.testing.assert_allclose(value, uninterrupted[name], rtol=0, atol=1e-9)
    resumed.stop()


def test_storage_that_learners_do_not_see_is_refused_at_start(config):
    with pytest.raises(
        ValueError, match=r"do not see run/run/trial/\.probe-\w+: put checkpoints \(Tune's storage_path\)"
    ):
        ARPO(config, storage=storage("run", NOT_SHARED))
