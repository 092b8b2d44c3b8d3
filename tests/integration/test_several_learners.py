"""Several learners, on other machines than the driver: what they save, that they die or hang, and how a run goes on.

The machines are nodes with addresses of their own.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
import ray
from pyarrow.fs import FSSpecHandler, PyFileSystem
from ray.cluster_utils import Cluster
from ray.rllib.utils import checkpoints as rllib_checkpoints
from ray.train._internal.storage import StorageContext

import rllib_arpo
from rllib_arpo import ARPO, ARPOConfig
from rllib_arpo.files import CHECKSUMS
from rllib_arpo.learner import learner_group
from rllib_arpo.learner.learner_group import LearnerDiedError
from tests.helpers.configs import scripted_config
from tests.helpers.processes import eventually
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
    try:
        yield
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def config(model_folder, monkeypatch) -> ARPOConfig:
    def refused(*_args, **_kwargs):
        raise AssertionError("RLlib's way through the driver takes at most 1 GiB.")

    monkeypatch.setattr(rllib_checkpoints, "sync_dir_between_nodes", refused)
    monkeypatch.setattr(learner_group, "FAILURE_GRACE_S", 8.0)
    config = scripted_config(model_folder).language_model(dtype="float64").training(learner_timeout_s=None)
    return config.learners(num_learners=2, custom_resources_per_learner={"for_learners": 1})


def on_nodes(config: ARPOConfig, folder: Path) -> ARPO:
    """The algorithm as in a run of Tune whose storage is the folder."""
    algorithm = ARPO(config.copy(copy_frozen=False), storage=storage(str(folder)))
    found = algorithm.learner_group.foreach_learner(lambda _learner: ray.util.get_node_ip_address())
    assert {result.get() for result in found} == {*NODES}
    return algorithm


def storage(folder: str, filesystem: PyFileSystem | None = None) -> StorageContext:
    return StorageContext(folder, "run", storage_filesystem=filesystem, trial_dir_name="trial")


def assert_weights(algorithm: ARPO, expected: dict[str, np.ndarray], atol: float = 0.0) -> None:
    for name, value in learner_weights(algorithm).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=atol)


def assert_next_iteration_gives(algorithm: ARPO, expected: dict[str, np.ndarray]) -> None:
    algorithm.train()
    # A learner in this process may have more threads, and transformers' norms are in fp32; an update changes 1e-3.
    assert_weights(algorithm, expected, atol=1e-8)


def save_and_train(algorithm: ARPO, folder: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Saves, fails to save, trains, goes back. Returns the checkpoint, and the weights after the iteration."""
    with pytest.raises(ValueError, match=r"checkpoint_dir: .* save_to_path"):
        algorithm.save(str(folder / "own"))
    saved, before = algorithm.save(), learner_weights(algorithm)
    assert Path(saved.checkpoint.path, "learner_group", "learner", CHECKSUMS).is_file()
    fail_to_save(algorithm, folder)
    algorithm.train()
    after = learner_weights(algorithm)
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    algorithm.restore(saved)
    assert_weights(algorithm, before)
    with pytest.raises(
        ValueError, match=r"^The learners on 127\.0\.0\.2, 127\.0\.0\.3 do not see checkpoint/learner_g"
    ):
        algorithm.save_to_path("checkpoint", filesystem=NOT_SHARED)
    return saved.checkpoint.path, after


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


def die_in_an_update(algorithm: ARPO) -> None:
    """The next update ends with the death of the first learner, and in bounded time."""

    def arm(learner) -> None:
        learner._accumulate_gradients = lambda *_: os._exit(1)

    ray.get(algorithm.learner_group._workers[0].apply.remote(arm))
    begin = time.monotonic()
    with pytest.raises(LearnerDiedError, match="Learner 0 has died, so the run ends"):
        algorithm.train()
    algorithm.stop()
    assert time.monotonic() - begin < 200


def hang_in_an_update(algorithm: ARPO) -> None:
    """A second learner that is stopped ends the run as one that has died, and its process is not left behind."""
    group = algorithm.learner_group
    pid = ray.get(group._workers[1].apply.remote(lambda _learner: os.getpid()))
    group.config = group.config.copy(copy_frozen=False).training(learner_timeout_s=2)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LearnerDiedError, match=r"has not answered for 2 s \(learner_timeout_s\), so the run ends"):
        algorithm.train()
    algorithm.stop()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists(), patience_s=60)


def test_learners_die_or_hang_and_their_checkpoints_go_on_in_others(config, tmp_path):
    """First replicas, whose checkpoint a sharded run takes over; then both checkpoints go on in one learner."""
    replicas = on_nodes(config, tmp_path / "replicas")
    replicas.train()
    of_replicas, after_replicas = save_and_train(replicas, tmp_path / "replicas")
    die_in_an_update(replicas)

    sharded = on_nodes(config.training(sharding="fsdp2"), tmp_path / "sharded")
    sharded.restore_from_path(of_replicas)
    assert_next_iteration_gives(sharded, after_replicas)
    of_shards, after_shards = save_and_train(sharded, tmp_path / "sharded")
    hang_in_an_update(sharded)

    alone = config.learners(num_learners=0).training(sharding="none").build_algo()
    for path, expected in ((of_replicas, after_replicas), (of_shards, after_shards)):
        alone.restore_from_path(path)
        assert_next_iteration_gives(alone, expected)
    alone.stop()


def test_storage_that_learners_do_not_see_is_refused_at_start(config):
    with pytest.raises(
        ValueError, match=r"do not see run/run/trial/\.probe-\w+: put checkpoints \(Tune's storage_path\)"
    ):
        ARPO(config.learners(num_learners=1), storage=storage("run", NOT_SHARED))
