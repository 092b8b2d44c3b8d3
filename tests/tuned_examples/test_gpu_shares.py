"""Recipes that also run without a GPU divide those that there are."""

import pytest

from rllib_arpo import ARPOConfig
from rllib_arpo.recipes.gpus import use_gpus


def parts(config: ARPOConfig) -> tuple:
    """(GPUs of a learner, GPUs of an env runner, the engine's part of its GPU, sleep level)."""
    memory = config.engine_kwargs.get("gpu_memory_utilization")
    return config.num_gpus_per_learner, config.num_gpus_per_env_runner, memory, config.sleep_level


@pytest.mark.parametrize(
    ("gpus", "learners", "env_runners", "expected"),
    [
        (0, 0, 1, (0, 0, None, 0)),
        (1, 0, 1, (0.5, 0.5, 0.4, 2)),
        (1, 1, 1, (0.5, 0.5, 0.4, 2)),
        (2, 0, 2, (0.5, 0.25, 0.2, 2)),
        (1, 0, 0, (1.0, 0.0, 0.4, 2)),
        (2, 0, 1, (1.0, 1.0, 0.9, 0)),
        (8, 4, 4, (1.0, 1.0, 0.9, 0)),
        (8, 8, 8, (0.1, 0.9, 0.72, 2)),
        (4, 2, 3, (0.1, 0.9, 0.72, 2)),
        (8, 1, 0, (1, 0, None, 0)),
        (1, 2, 0, (0, 0, None, 0)),
    ],
)
def test_parts_of_gpus(gpus, learners, env_runners, expected):
    config = ARPOConfig().learners(num_learners=learners).env_runners(num_env_runners=env_runners)
    use_gpus(config, gpus)
    assert parts(config) == pytest.approx(expected)


def test_the_env_runners_of_evaluation_need_gpus_too():
    config = ARPOConfig().env_runners(num_env_runners=1).evaluation(evaluation_num_env_runners=1)
    use_gpus(config, 1)
    assert parts(config) == pytest.approx((0.5, 0.25, 0.2, 2))
    use_gpus(config, 3)
    assert parts(config) == pytest.approx((1.0, 1.0, 0.9, 0))


@pytest.mark.parametrize(("learners", "env_runners"), [(2, 1), (2, 3), (3, 3)])
def test_several_learners_do_not_share_a_gpu(learners, env_runners):
    config = ARPOConfig().learners(num_learners=learners).env_runners(num_env_runners=env_runners)
    with pytest.raises(ValueError) as raised:
        use_gpus(config, 2)
    assert str(raised.value) == (
        f"--num-learners {learners}: with {env_runners} env runners this takes {learners + env_runners} GPUs, and "
        f"there are 2; to share them in pairs, take no more learners than env runners, and no more env runners than "
        f"GPUs."
    )
