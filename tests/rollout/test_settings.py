"""The settings that the sampler reads of a configuration."""

from dataclasses import fields

import pytest

from rllib_arpo import ARPOConfig
from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.core.rollout_history import NO_HISTORY, RolloutReference
from rllib_arpo.rollout.settings import RolloutSettings

#: What greedy decoding or the caller decides, what is a value of its own, and what training does not have.
COMPUTED = {"num_initial_rollouts", "branching", "rollout_reference", "reshaping"}


@pytest.mark.parametrize("kind", [RolloutSettings, BranchingParams])
def test_every_field_is_the_keyword_of_its_name(kind):
    config, values = ARPOConfig().adaptive_rollout(branch_width=1), {}
    for field in fields(kind):
        if field.name not in COMPUTED:
            values[field.name] = object()
            setattr(config, field.name, values[field.name])
    settings = RolloutSettings.from_config(config, explore=True)
    found = settings if kind is RolloutSettings else settings.branching
    assert {name: getattr(found, name) for name in values} == values
    assert len(values) >= 6


def test_greedy_decoding_is_one_trajectory():
    config = ARPOConfig().adaptive_rollout(pre_monitoring_sensitivity=1.0, num_rollouts=4, num_initial_rollouts=2)
    settings = RolloutSettings.from_config(config, explore=False)
    assert (settings.num_rollouts, settings.num_initial_rollouts, settings.temperature) == (1, 1, 0.0)
    assert (settings.branching.branching, settings.pre_monitoring_sensitivity) == ("never", None)
    assert (settings.seed, settings.rollout_reference) == (0, NO_HISTORY)


def test_names_are_numbers_in_the_sampler_and_without_forks_all_start_at_once():
    config = ARPOConfig().adaptive_rollout(branch_threshold="auto", branch_width="wide", num_initial_rollouts=2)
    references = (NO_HISTORY, RolloutReference(rise=1.5))
    branching = [RolloutSettings.from_config(config, explore=True, rollout_reference=r).branching for r in references]
    assert [one.branch_threshold for one in branching] == [0.5, pytest.approx(0.5 + 0.2 * 1.5)]
    assert {one.branch_width for one in branching} == {7}
    assert (
        RolloutSettings.from_config(config.adaptive_rollout(branching="never"), explore=True).num_initial_rollouts == 16
    )
