"""The steps of the learner pipeline, in their order: from episodes to flat arrays in which every token occurs once.

docs/design.md has the formulas, from "Group advantage" to "Weights", and under "Attribution".
"""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2

from rllib_arpo.core.advantages import (
    ATTRIBUTIONS,
    LEAF_WEIGHTINGS,
    batch_advantages,
    group_reward_scale,
    leaf_ranges,
    leaf_weights,
    overlong_penalty,
    reward_scale,
    to_go_offsets,
)
from rllib_arpo.core.columns import (
    LAYOUTS,
    LEAF_ADVANTAGES,
    LEAF_REWARDS,
    LEAF_WEIGHTS,
    NODE_ADVANTAGES,
    NODE_ATTRIBUTIONS,
    NODE_OFFSETS,
    PACKED_TREES,
    REWARD_SCALE,
    REWARD_STATISTICS,
    TREES,
)
from rllib_arpo.core.credit import advantages_of, credit_of
from rllib_arpo.core.packing import pack_tree
from rllib_arpo.core.token_counts import response_tokens
from rllib_arpo.core.tree import QuestionTree, TreeLayout, depth_first_layout
from rllib_arpo.rollout.episodes import TreeEpisode


class Step(ConnectorV2):
    """A connector whose settings are its annotated attributes; one without a value in the class must be given.

    Steps have no `__init__` of their own: RLlib would look for its arguments with `inspect.stack()`, which reads the
    source files of all callers and takes about 0.1 s a step.
    """

    def __init__(self, input_observation_space: Any = None, input_action_space: Any = None, **settings: Any) -> None:
        """
        Raises:
            TypeError: a setting is unknown, or one is missing.
        """
        super().__init__(input_observation_space, input_action_space)
        names = inspect.get_annotations(type(self))
        if unknown := settings.keys() - names.keys():
            raise TypeError(f"{type(self).__name__} does not have the settings {sorted(unknown)}.")
        if missing := [name for name in names if name not in settings and not hasattr(type(self), name)]:
            raise TypeError(f"{type(self).__name__} needs the settings {missing}.")
        self.__dict__.update(settings)
        self._ctor_kwargs |= settings


class EpisodesToTrees(ConnectorV2):
    """Adds TREES (`QuestionTree`), LAYOUTS (`TreeLayout`) and LEAF_REWARDS ([L] float64), one entry per episode.

    It is the only step that reads episodes.
    """

    def __call__(self, *, batch: dict[str, Any], episodes: list[TreeEpisode], **kwargs: Any) -> dict[str, Any]:
        trees = [episode.tree for episode in episodes]
        layouts = [depth_first_layout(tree) for tree in trees]
        batch[TREES] = trees
        batch[LAYOUTS] = layouts
        batch[LEAF_REWARDS] = [leaf_rewards(*pair) for pair in zip(trees, layouts, strict=True)]
        return batch


def leaf_rewards(tree: QuestionTree, layout: TreeLayout) -> np.ndarray:
    """The returns of the leaves that count, [L] float64, in `TreeLayout.leaves` order."""
    return tree.returns()[list(layout.leaves)]


class OverlongPenalty(Step):
    """Adds the penalty of each leaf's response to LEAF_REWARDS; the logged rewards stay as the environment gave them.

    This is DAPO's soft penalty for long responses (arXiv 2503.14476, eq. 13). A response is what
    `max_response_tokens` counts: the generated and the tool tokens of the leaf's whole path.
    """

    max_response_tokens: int
    overlong_buffer_tokens: int

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch[LEAF_REWARDS] = [
            rewards + [self._penalty(num_tokens) for num_tokens in response_tokens(tree, layout)]
            for rewards, tree, layout in zip(batch[LEAF_REWARDS], batch[TREES], batch[LAYOUTS], strict=True)
        ]
        return batch

    def _penalty(self, num_tokens: int) -> float:
        return overlong_penalty(num_tokens, self.max_response_tokens, self.overlong_buffer_tokens)


class QuestionAdvantage(Step):
    """Adds LEAF_ADVANTAGES ([L] float64) and NODE_ADVANTAGES per question, by a credit of the question's tree.

    REWARD_SCALE is 1: each question is divided by its own deviation; the batch as a whole is not divided.

    Attributes:
        credit: see `credit_of`.
    """

    credit: str
    normalize_std: bool = True

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        credit = credit_of(self.credit)
        columns = zip(batch[LEAF_REWARDS], batch[TREES], batch[LAYOUTS], strict=True)
        found = [advantages_of(credit, *question, self.normalize_std) for question in columns]
        batch[LEAF_ADVANTAGES] = [leaves for leaves, _ in found]
        batch[NODE_ADVANTAGES] = [nodes for _, nodes in found]
        batch[REWARD_SCALE] = 1.0
        return batch


class BatchAdvantage(Step):
    """Adds LEAF_ADVANTAGES, [L] float64 per question, the rewards against those of the whole batch, and REWARD_SCALE.

    The baseline of REINFORCE++. A learner sees only its shard: the mean and the standard deviation come from the
    driver, through `shared_data`.
    """

    def __call__(self, *, batch: dict[str, Any], shared_data: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        statistics = shared_data[REWARD_STATISTICS]
        batch[LEAF_ADVANTAGES] = [
            batch_advantages(rewards, statistics.mean, statistics.std) for rewards in batch[LEAF_REWARDS]
        ]
        batch[REWARD_SCALE] = reward_scale(statistics.std)
        return batch


class RewardsToGo(Step):
    """Adds NODE_OFFSETS, [N] float64 per question, so that only the rewards paid after a token judge it.

    Attributes:
        normalize_std: whether each question's rewards are divided by their own deviation; otherwise REWARD_SCALE holds.
    """

    normalize_std: bool
    leaf_weighting: str

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        columns = zip(batch[TREES], batch[LAYOUTS], batch[LEAF_REWARDS], strict=True)
        factors = LEAF_WEIGHTINGS[self.leaf_weighting]
        batch[NODE_OFFSETS] = [
            to_go_offsets(
                tree, layout, factors(layout), batch[REWARD_SCALE] * group_reward_scale(rewards, self.normalize_std)
            )
            for tree, layout, rewards in columns
        ]
        return batch


class LeafWeights(Step):
    """Adds LEAF_WEIGHTS, [L] float64 per question: unnormalised, the learner divides by the minibatch's denominator."""

    loss_aggregation: str
    leaf_weighting: str
    max_response_tokens: int

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch[LEAF_WEIGHTS] = [
            leaf_weights(tree, layout, self.loss_aggregation, self.leaf_weighting, self.max_response_tokens)
            for tree, layout in zip(batch[TREES], batch[LAYOUTS], strict=True)
        ]
        return batch


def judged_by(batch: Mapping[str, Any]) -> list[np.ndarray]:
    """Per question the advantages that attribution reads, [L] or [N, L]."""
    leaves = batch[LEAF_ADVANTAGES]
    nodes = batch.get(NODE_ADVANTAGES) or [None] * len(leaves)
    return [own if by_node is None else by_node for own, by_node in zip(leaves, nodes, strict=True)]


class Attribution(Step):
    """Adds NODE_ATTRIBUTIONS, a `NodeAttribution` ([N] each) per question."""

    attribution: str

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        attribute = ATTRIBUTIONS[self.attribution]
        layouts = batch[LAYOUTS]
        all_offsets = batch.get(NODE_OFFSETS, [None] * len(layouts))
        columns = zip(judged_by(batch), batch[LEAF_WEIGHTS], layouts, all_offsets, strict=True)
        batch[NODE_ATTRIBUTIONS] = [
            attribute(advantages, weights, *leaf_ranges(layout), offsets)
            for advantages, weights, layout, offsets in columns
        ]
        return batch


class DepthFirstPacking(Step):
    """Adds PACKED_TREES, one `PackedTree` per question; the learner cuts and joins them into passes.

    Their `behavior_entropies` are filled in where the learner needs them (`with_entropies`).
    """

    with_entropies: bool = False

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        columns = zip(batch[TREES], batch[LAYOUTS], batch[NODE_ATTRIBUTIONS], strict=True)
        batch[PACKED_TREES] = [
            pack_tree(tree, layout, attribution, with_entropies=self.with_entropies)
            for tree, layout, attribution in columns
        ]
        return batch
