"""Algorithms to compare ARPO with. Each is the same algorithm with other settings."""

from ray.rllib.algorithms.algorithm import Algorithm

from rllib_arpo.arpo import ARPO
from rllib_arpo.arpo_config import ARPOConfig


class GRPOConfig(ARPOConfig):
    """Group Relative Policy Optimization (arXiv 2402.03300): M independent rollouts, group-normalised advantages.

    It differs from `ARPOConfig` only in `branching`, so comparing the two measures the forks; both losses are means
    over tokens. `.training(loss_aggregation="sequence_mean")` gives the paper's equation 3, a mean over sequences of
    means over tokens. The paper's KL term is off unless you set `kl_coeff`.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None):
        super().__init__(algo_class=algo_class or GRPO)
        self.branching = "never"


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
    (group std + 1e-6)`. The paper divides by one number for all tokens, the standard deviation of the batch's centred
    rewards; with `normalize_std=False`, `A = r - group mean` differs from the paper only by that factor. In both cases
    the KL stays in the reward, undivided, while the paper's variant has a k2 term in the loss.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None):
        super().__init__(algo_class=algo_class or ReinforcePlusPlus)
        self.branching = "never"
        self.baseline = "batch"
        self.kl_in_reward = True
        self.kl_coeff = 0.01


class AEPOConfig(ARPOConfig):
    """Agentic Entropy-Balanced Policy Optimization (arXiv 2510.14545): ARPO with more weight on uncertain tokens.

    The rollout chooses N for each question: `N = M sigma(beta (H_root - H_tool))`, where beta is
    `pre_monitoring_sensitivity`. It measures H_root on the first tokens of the question's first trajectory, which is
    kept, and H_tool on earlier questions; the paper measures both on a probe that it samples first. Below l forked
    nodes in a row it multiplies P by `1 - min(c l, 1)`, where c is `consecutive_fork_penalty`. The values of beta and c
    are this package's choice.

    The update keeps the gradient of tokens above the upper clip bound (`keep_clipped_gradient`), and multiplies a
    token's advantage by `1 + a z(H)` (a is `entropy_advantage_coeff`; the authors' code has 0.2). An update with a
    single step clips nothing, so a batch needs several minibatches or epochs.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None):
        super().__init__(algo_class=algo_class or AEPO)
        self.branch_width = 1
        self.pre_monitoring_sensitivity = 1.0
        self.consecutive_fork_penalty = 0.2
        self.record_entropies = "all"
        self.keep_clipped_gradient = True
        self.entropy_advantage_coeff = 0.2


class TreeGRPOConfig(ARPOConfig):
    """Tree-GRPO (arXiv 2509.21240): compares a trajectory within its own tree and with all trees of the question.

    When the N initial trajectories have ended, M - N of their tool responses get one child each: random ones, from each
    tree in turn. The authors' (M, N, L) = (2, 2, 1) is `num_initial_rollouts=2, num_rollouts=6`. This is one round of
    expansion (their L = 1) if the initial trajectories have M - N nodes; otherwise, and mostly with the default N = 2,
    the children's nodes follow in more rounds. The paper's KL term is off unless you set `kl_coeff`; the authors' runs
    have 0.001.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None):
        super().__init__(algo_class=algo_class or TreeGRPO)
        self.branching = "always"
        self.branch_width = 1
        self.budget_allocation = "random_over_tree"
        self.baseline = "tree"


class GRPO(ARPO):
    """ARPO without forks, configured by `GRPOConfig`."""

    config_class = GRPOConfig


class DAPO(ARPO):
    """ARPO without forks, configured by `DAPOConfig`."""

    config_class = DAPOConfig


class ReinforcePlusPlus(ARPO):
    """ARPO without forks, configured by `ReinforcePlusPlusConfig`."""

    config_class = ReinforcePlusPlusConfig


class AEPO(ARPO):
    """ARPO with an entropy-aware rollout and update, configured by `AEPOConfig`."""

    config_class = AEPOConfig


class TreeGRPO(ARPO):
    """ARPO with advantages within and between trees, configured by `TreeGRPOConfig`."""

    config_class = TreeGRPOConfig
