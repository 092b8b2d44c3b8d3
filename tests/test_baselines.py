"""The compared algorithms differ from ARPO only as their names say."""

import pytest

from rllib_arpo import AEPOConfig, ARPOConfig, DAPOConfig, GRPOConfig, ReinforcePlusPlusConfig, TreeGRPOConfig


@pytest.mark.parametrize(
    ("config_class", "expected"),
    [
        (GRPOConfig, {"branching": "never"}),
        (
            DAPOConfig,
            {"branching": "never", "clip_high": 0.28, "max_resample_rounds": 3, "overlong_buffer_tokens": 512},
        ),
        (ReinforcePlusPlusConfig, {"branching": "never", "baseline": "batch", "kl_in_reward": True, "kl_coeff": 0.01}),
        (
            AEPOConfig,
            {
                "branch_width": 1,
                "pre_monitoring_sensitivity": 1.0,
                "consecutive_fork_penalty": 0.2,
                "record_entropies": "all",
                "keep_clipped_gradient": True,
                "entropy_advantage_coeff": 0.2,
            },
        ),
        (
            TreeGRPOConfig,
            {"branching": "always", "branch_width": 1, "budget_allocation": "random_over_tree", "baseline": "tree"},
        ),
    ],
)
def test_what_differs_from_arpo_key_by_key_and_whose_configuration_it_is(config_class, expected):
    arpo, other = ARPOConfig().to_dict(), config_class().to_dict()
    assert other.keys() == arpo.keys()
    assert {key: value for key, value in other.items() if value != arpo[key]} == expected
    algorithm = config_class().algo_class
    assert f"{algorithm.__name__}Config" == config_class.__name__
    assert type(algorithm.get_default_config()) is config_class
