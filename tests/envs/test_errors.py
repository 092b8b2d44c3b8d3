"""What counts as a number that users return."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from rllib_arpo.envs.errors import ContractError, finite

NUMBERS = [np.float16(0.5), np.float32(0.5), np.int64(1), np.bool_(True), np.array(0.5), torch.tensor(0.5),
           torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), Fraction(1, 2), True, 1]  # fmt: skip


@pytest.mark.parametrize("reward", NUMBERS, ids=repr)
def test_any_real_number_is_a_reward(reward):
    assert finite(reward, "It") == float(getattr(reward, "item", lambda: reward)())
    assert type(finite(reward, "It")) is float


@pytest.mark.parametrize(
    "reward", [None, "0.5", Decimal("0.5"), 1j, [0.5], np.array([0.5]), torch.tensor([0.5]), -math.inf, 10**400]
)
def test_anything_else_is_no_reward(reward):
    with pytest.raises(ContractError, match=r"^It must be a finite number, not .{1,80}\.$"):
        finite(reward, "It")
