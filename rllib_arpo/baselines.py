"""The algorithms that ARPO is compared with: the same algorithm with other switches."""

from __future__ import annotations

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override

from rllib_arpo.arpo import ARPO
from rllib_arpo.arpo_config import ARPOConfig


class GRPOConfig(ARPOConfig):
    """Group Relative Policy Optimization (arXiv 2402.03300): M independent rollouts, group-normalised advantages.

    The loss is a mean over sequences of means over tokens, as in the paper's equation 3; its KL term is off unless
    `kl_coeff` is set.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None):
        super().__init__(algo_class=algo_class or GRPO)
        self.branching = "never"
        self.loss_aggregation = "sequence_mean"


class DAPOConfig(ARPOConfig):
    """DAPO (arXiv 2503.14476): clip-higher, token mean, no KL, dynamic sampling, soft overlong penalty."""

    def __init__(self, algo_class: type[Algorithm] | None = None):
        super().__init__(algo_class=algo_class or DAPO)
        self.branching = "never"
        self.clip_low = 0.2
        self.clip_high = 0.28
        self.loss_aggregation = "token_mean"
        self.max_resample_rounds = 3
        self.overlong_buffer_tokens = 512


class ReinforcePlusPlusConfig(ARPOConfig):
    """REINFORCE++ (arXiv 2501.03262): batch-normalised advantages, per-token k1 KL in the reward, no group mean.

    `.training(baseline="group")` gives the "-baseline" variant's group mean with GRPO's scale: `A = (r - group mean) /
    (group std + 1e-6)`. The paper divides by the deviation of all the centred rewards of the batch instead, one number
    for all tokens: with `normalize_std=False`, `A = r - group mean` is the paper's but for that factor. With either the
    KL stays in the reward, undivided, where the paper's variant has a k2 term in the loss.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None):
        super().__init__(algo_class=algo_class or ReinforcePlusPlus)
        self.branching = "never"
        self.baseline = "batch"
        self.kl_in_reward = True
        self.kl_coeff = 0.01


class GRPO(ARPO):
    """ARPO without forks, configured by `GRPOConfig`."""

    @classmethod
    @override(ARPO)
    def get_default_config(cls) -> GRPOConfig:
        return GRPOConfig()


class DAPO(ARPO):
    """ARPO without forks, configured by `DAPOConfig`."""

    @classmethod
    @override(ARPO)
    def get_default_config(cls) -> DAPOConfig:
        return DAPOConfig()


class ReinforcePlusPlus(ARPO):
    """ARPO without forks, configured by `ReinforcePlusPlusConfig`."""

    @classmethod
    @override(ARPO)
    def get_default_config(cls) -> ReinforcePlusPlusConfig:
        return ReinforcePlusPlusConfig()
