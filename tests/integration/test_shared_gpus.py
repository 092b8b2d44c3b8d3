"""Where Ray really puts learners and engines that share GPUs; logical ones, which nothing computes on."""

import pytest
import ray
from ray.tune import PlacementGroupFactory
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rllib_arpo import ARPO
from rllib_arpo.learner.placement import place_on_gpus
from rllib_arpo.validation.resources import actor_bundles
from tests.helpers.clusters import own_ray
from tests.helpers.configs import small_config

pytestmark = pytest.mark.slow

#: Seconds within which Ray places what it can place.
PLACED_S = 5.0


@pytest.fixture(scope="module")
def four_gpus():
    with own_ray(num_cpus=2, num_gpus=4, log_to_driver=False):
        yield


@ray.remote
def gpus_here() -> list[int]:
    return ray.get_gpu_ids()


def placed_by_ray(factory: PlacementGroupFactory) -> list[list[int]] | None:
    """The numbers of the GPUs of each bundle that has some; None if Ray does not place them."""
    group = factory.to_placement_group()
    try:
        if not group.wait(PLACED_S):
            return None
        shares = [bundle.get("GPU", 0.0) for bundle in factory.bundles]
        asked = [
            gpus_here.options(
                num_cpus=0, num_gpus=share, scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)
            ).remote()
            for index, share in enumerate(shares)
            if share
        ]
        return ray.get(asked, timeout=60)
    finally:
        remove_placement_group(group)


def configured(model_folder: str, learner: float, env_runner: float, number: int = 4):
    return (
        small_config(model_folder)
        .learners(num_learners=number, num_cpus_per_learner=0.1, num_gpus_per_learner=learner)
        .env_runners(num_env_runners=number, num_cpus_per_env_runner=0.1, num_gpus_per_env_runner=env_runner)
    )


@pytest.mark.parametrize(("learner", "env_runner", "number"), [(0.1, 0.9, 4), (0.45, 0.55, 4), (0.55, 0.45, 2)])
def test_ray_places_what_is_accepted(four_gpus, model_folder, learner, env_runner, number):
    factory = ARPO.default_resource_request(configured(model_folder, learner, env_runner, number))
    placed = placed_by_ray(factory)
    assert placed == place_on_gpus([env_runner] * number + [learner] * number)
    assert len({gpu for (gpu,) in placed[number:]}) == number


def test_ray_does_not_place_what_is_refused(four_gpus, model_folder):
    config = configured(model_folder, 0.55, 0.45)
    with pytest.raises(ValueError, match=r"^Ray gives out 4 x 0.45, 4 x 0.55 of a GPU, in this order, and needs 6 "):
        ARPO.default_resource_request(config)
    assert placed_by_ray(PlacementGroupFactory(actor_bundles(config))) is None
