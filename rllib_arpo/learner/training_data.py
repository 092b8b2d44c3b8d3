"""The data that the driver gives to every learner: whole questions and the plan of the minibatches.

The driver computes the denominators and the statistics of the rewards, so the update is the same for every number of
learners. Each learner trains on its share of a minibatch (`core/shares.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner.training_data import TrainingData

from rllib_arpo.connectors import BATCH, leaf_rewards
from rllib_arpo.core.advantages import NO_VALUES, MeanAndStd, earlier_rewards, loss_denominator, mean_and_std
from rllib_arpo.core.credit import CREDITS
from rllib_arpo.core.entropy import entropy_statistics, unique_entropies
from rllib_arpo.core.tree import QuestionTree, TreeLayout, depth_first_layout
from rllib_arpo.rollout.episodes import TreeEpisode


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One optimizer step.

    Attributes:
        questions: indices into the episodes of the `QuestionBatch` that holds the minibatch.
        denominator: the number by which the loss is divided; 0 if no trajectory counts.
        entropies: the statistics of the unique generated tokens' entropies, if advantages depend on them.
    """

    questions: tuple[int, ...]
    denominator: float
    entropies: MeanAndStd | None = None


@dataclass
class QuestionBatch(TrainingData):
    """Whole questions, one episode each, with the plan of the update; made by `plan`.

    Attributes:
        minibatches: the optimizer steps, epoch after epoch. Every question is in exactly one minibatch per epoch; the
            sizes of an epoch's minibatches differ by at most one.
        statistics: mean and deviation of the rewards, for baselines over the whole batch.
        has_signal: whether any advantage may differ from 0. It includes the overlong penalty, which
            `core.figures.has_signal` ignores.
    """

    minibatches: tuple[Minibatch, ...] = ()
    statistics: MeanAndStd = NO_VALUES
    has_signal: bool = True

    @classmethod
    def plan(cls, episodes: Sequence[TreeEpisode], config: AlgorithmConfig, seed: int = 0) -> QuestionBatch:
        """Plans the update on `episodes`.

        Args:
            episodes: Q >= 1 episodes, one per question.
            seed: seeds the order of the questions if `shuffle_batch_per_epoch` is set; one per update.

        Raises:
            ValueError: advantages depend on entropies that were not recorded.
        """
        questions = [(episode.tree, depth_first_layout(episode.tree)) for episode in episodes]
        rewards = [leaf_rewards(tree, layout, config) for tree, layout in questions]
        denominators = [
            loss_denominator(tree, layout, config.loss_aggregation, config.leaf_weighting) for tree, layout in questions
        ]
        entropies = None
        if config.entropy_advantage_coeff > 0:
            entropies = [unique_entropies(tree, layout) for tree, layout in questions]
        orders = _epoch_orders(len(episodes), config.num_epochs, seed if config.shuffle_batch_per_epoch else None)
        return cls(
            episodes=list(episodes),
            minibatches=tuple(
                Minibatch(
                    questions=chunk,
                    denominator=sum(denominators[question] for question in chunk),
                    entropies=None if entropies is None else entropy_statistics([entropies[q] for q in chunk]),
                )
                for order in orders
                for chunk in _chunks(order, config.questions_per_minibatch)
            ),
            statistics=mean_and_std(np.concatenate(rewards)),
            has_signal=_has_signal(questions, rewards, config),
        )


def _has_signal(
    questions: Sequence[tuple[QuestionTree, TreeLayout]], rewards: Sequence[np.ndarray], config: AlgorithmConfig
) -> bool:
    """Whether any advantage may differ from 0; with a user's own credit always, since it may compare anything."""
    credit = CREDITS.get(config.baseline)
    if credit is None and config.baseline != BATCH:
        return True
    compared = [np.concatenate(rewards)] if config.baseline == BATCH else list(rewards)
    if config.returns == "to_go" or (credit is not None and credit.judges_equal_returns):
        compared += [earlier_rewards(tree, layout) for tree, layout in questions]
    return any(len(np.unique(values)) > 1 for values in compared)


def _epoch_orders(num_questions: int, num_epochs: int, seed: int | None) -> list[list[int]]:
    """The order of the questions in each epoch; without a seed, the given order."""
    if seed is None:
        return [list(range(num_questions))] * num_epochs
    return [np.random.default_rng([seed, epoch]).permutation(num_questions).tolist() for epoch in range(num_epochs)]


def _chunks(order: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """As few parts as hold at most `size` questions each: a small last one would move Adam as far as a whole one."""
    return [tuple(part.tolist()) for part in np.array_split(order, math.ceil(len(order) / size))]
