"""The sentence of a refused configuration."""

import pytest

from rllib_arpo import ARPOConfig


def message(config: ARPOConfig) -> str:
    """The sentence with which `config` is refused."""
    with pytest.raises(ValueError) as raised:
        config.validate()
    assert "\n" not in str(raised.value)
    return str(raised.value)
