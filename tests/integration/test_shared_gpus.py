"""Where Ray really puts learners and engines that share GPUs; eight logical ones."""

from collections.abc import Iterator
from typing import Any

import pytest
from ray import tune
from ray.rllib.core.learner import learner_group
from ray.train.torch import TorchConfig
from ray.tune import PlacementGroupFactory
from ray.util.placement_group import remove_placement_group

from rllib_arpo import ARPO, ARPOConfig
from rllib_arpo.doctor.budget import budget_checks, read_run
from rllib_arpo.doctor.checks import Check, Mark, Memory
from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.learner.placement import TWO_ENGINES
from rllib_arpo.validation.resources import actor_bundles
from tests.helpers.clusters import own_ray
from tests.helpers.configs import small_config
from tests.helpers.idle_actors import gpus_here, start_idle
from tests.learner.builders import SPACES, make_config

pytestmark = pytest.mark.slow

#: Seconds within which Ray places what it can place.
PLACED_S = 5.0


@pytest.fixture(scope="module", autouse=True)
def eight_gpus() -> Iterator[None]:
    with own_ray(num_cpus=2, num_gpus=8, log_to_driver=False):
        yield


def configured(model_folder: str, number: int, of_learner: float, of_engine: float) -> ARPOConfig:
    return (
        small_config(model_folder)
        .learners(num_learners=number, num_cpus_per_learner=0.05, num_gpus_per_learner=of_learner)
        .env_runners(num_env_runners=number, num_cpus_per_env_runner=0.05, num_gpus_per_env_runner=of_engine)
    )


@pytest.mark.parametrize(("learner", "engine", "numbers"), [
    (0.1, 0.9, [2, 4, 8]), (0.45, 0.55, [4])
])  # fmt: skip
def test_each_gpu_gets_a_learner_and_an_engine(model_folder, tmp_path, learner, engine, numbers):
    def wanted(split: dict[str, Any]) -> PlacementGroupFactory:
        config = configured(model_folder, split["number"], learner, engine)
        config.validate()
        return ARPO.default_resource_request(config)

    split = {"number": tune.grid_search(numbers), "learner": learner, "engine": engine}
    trainable, one = tune.with_resources(start_idle, wanted), {"max_concurrent_trials": 1, "verbose": 0}
    for trial in tune.run(trainable, config=split, storage_path=str(tmp_path), **one).trials:
        placed = trial.last_result
        assert len(set(placed["engine"])) == trial.config["number"]
        assert sorted(placed["learner"]) == sorted(placed["engine"])


def test_what_ray_does_not_place_is_refused_in_one_sentence(model_folder):
    config = configured(model_folder, 8, 0.55, 0.45)
    with pytest.raises(ValueError) as raised:
        config.validate()
    assert str(raised.value) == f"num_gpus_per_env_runner=0.45: {TWO_ENGINES}."
    run = read_run(config.language_model(engine="vllm", dtype="bfloat16", engine_kwargs={}))
    eight = Memory(gpus=(80 * 10**9,) * 8, host=10**12, object_store=10**11)
    for given_gb in (None, 80.0):
        assert budget_checks(run, eight, given_gb)[0] == Check(Mark.MISSING, "GPUs", TWO_ENGINES)
    group = PlacementGroupFactory(actor_bundles(config)).to_placement_group()
    assert not group.wait(PLACED_S)
    remove_placement_group(group)


def gloo(_learner_class: type) -> TorchConfig:
    """Ray would take NCCL for learners with GPUs, also logical ones."""
    return TorchConfig(backend="gloo")


class OnLogicalGPUs(ARPOTorchLearner):
    def _gpu(self) -> str:
        return ",".join(gpus_here())


def test_learners_compare_their_gpus_when_they_start(model_folder, monkeypatch):
    """Without validation: it would refuse two halves, which land on one GPU."""
    monkeypatch.setattr(learner_group, "_get_backend_config", gloo)
    config = make_config(model_folder).training(learner_class=OnLogicalGPUs)
    config.learners(num_learners=2, num_cpus_per_learner=0.05, num_gpus_per_learner=0.5)
    with pytest.raises(ValueError, match=r"Learners 0 and 1 have the same GPU, .*/\d, which NCCL refuses; to share"):
        config.build_learner_group(spaces=SPACES)
