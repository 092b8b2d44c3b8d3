"""The small model's recipe with learning broken on purpose: what a learning test has to notice.

    python -m release.evidence.broken_recipe --broken swapped --as-release-test --stop-reward 0.7

`tests/tuned_examples/test_nightly.py` expects these runs to fail.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2

from rllib_arpo import ARPOConfig
from rllib_arpo.recipes import EVALUATION_ACCURACY, run_recipe
from tuned_examples import trails_small_arpo
from tuned_examples.trails_small_arpo import make_model

#: A learning rate that no fp32 weight can show; 0 is refused.
NO_STEP = 1e-30


class Rewards(ConnectorV2):
    """Gives the rewards of each question's trajectories to others of them, before advantages are computed.

    Args:
        order: of the trajectories' ids; trajectory i gets the reward of the i-th in the order that is returned.
    """

    def __init__(self, order: Callable[[Sequence[str]], Sequence[str]]):
        super().__init__(None, None)
        self._order = order

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in episodes:
            agents = episode.agent_episodes
            last = {name: float(agent.rewards[-1]) for name, agent in agents.items()}
            for name, other in zip(last, self._order(list(last)), strict=True):
                agents[name].rewards[-1] = last[other]
        return batch


def swapped(ids: Sequence[str]) -> list[str]:
    """Each fork trades with the trajectory that it was forked from, the earlier forks of one first."""
    order = {name: name for name in ids}
    for name in sorted(ids, key=lambda name: (name.count("."), name)):
        parent = name.rpartition(".")[0]
        if parent in order:
            order[name], order[parent] = order[parent], order[name]
    return [order[name] for name in ids]


def shuffled(seed: int) -> Callable[[Sequence[str]], list[str]]:
    rng = np.random.default_rng(seed)
    return lambda ids: [ids[i] for i in rng.permutation(len(ids))]


def _with_rewards(config: ARPOConfig, order: Callable[[Sequence[str]], Sequence[str]]) -> ARPOConfig:
    return config.learners(learner_connector=lambda *_spaces: Rewards(order))


#: The name of a mistake -> (configuration, seed) -> configuration.
BROKEN: dict[str, Callable[[ARPOConfig, int], ARPOConfig]] = {
    "lr": lambda config, _seed: config.training(lr=NO_STEP),
    "shuffled": lambda config, seed: _with_rewards(config, shuffled(seed)),
    "swapped": lambda config, _seed: _with_rewards(config, swapped),
}

parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0], parents=[trails_small_arpo.parser], add_help=False
)
parser.add_argument(
    "--broken",
    choices=BROKEN,
    required=True,
    help="lr: no step; shuffled: a question's rewards, among its trajectories; swapped: among forks and parents",
)


def make_config(model: str, args: argparse.Namespace) -> ARPOConfig:
    return BROKEN[args.broken](trails_small_arpo.make_config(model, args), args.seed)


if __name__ == "__main__":
    args = parser.parse_args()
    run_recipe(make_config(make_model(args), args), args, "trails-small-broken", test_metric=EVALUATION_ACCURACY)
