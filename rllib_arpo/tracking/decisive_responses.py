"""Metrics for tasks with decisive tool responses: whether the entropy rises and forks occur there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from rllib_arpo.core.figures import ExaminedNode, examined_nodes
from rllib_arpo.envs.protocols.prompts import load_tokenizer
from rllib_arpo.rollout.metric_table import nested

if TYPE_CHECKING:
    from rllib_arpo.arpo import ARPO

#: (tokens of a tool response [m]) -> whether it requires a decision.
IsDecisive = Callable[[np.ndarray], bool]


class DecisiveResponses(RLlibCallback):
    """Adds metrics that compare decisive tool responses with other ones.

    A subclass defines which responses are decisive (`is_decisive`). Once an iteration the driver computes the metrics
    of all its questions and puts them below "env_runners" into the result. Each is a mean over the questions that have
    such nodes (or forks); a metric that no question has is left out:

    - `decisive/rise_share`, `other/rise_share`: share of the decisive (other) nodes with dH > 0;
    - `decisive/delta`, `other/delta`: mean dH;
    - `decisive/auc`: how often dH is larger at a decisive node than at another node (0.5: no relation);
    - `decisive/fork_share`: share of the forked trajectories that begin at a decisive node.

    The first five cover only trajectories from the prompt, like the metrics of dH (`rollout/metric_table.py`), because
    forks start where the entropy is high. The last one covers all forks.
    """

    def is_decisive(self, response: str) -> bool:
        """Whether a tool's response, as the model reads it, requires a decision."""
        raise NotImplementedError

    def on_train_result(self, *, algorithm: ARPO, result: dict[str, Any], **_kwargs: Any) -> None:
        tokenizer = load_tokenizer(algorithm.config.model_name_or_path)
        metrics = mean_decisiveness(
            (examined_nodes(question.tree, question.entropy_window) for question in algorithm.last_sampled),
            lambda response: self.is_decisive(tokenizer.decode(response)),
        )
        result.setdefault(ENV_RUNNER_RESULTS, {}).update(nested(metrics))


def mean_decisiveness(questions: Iterable[Sequence[ExaminedNode]], is_decisive: IsDecisive) -> dict[str, float]:
    """The metrics of `decisiveness`, each as the mean over the questions that have it."""
    values: dict[str, list[float]] = {}
    for nodes in questions:
        for name, value in decisiveness(nodes, is_decisive).items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(found)) for name, found in values.items()}


def decisiveness(nodes: Sequence[ExaminedNode], is_decisive: IsDecisive) -> dict[str, float]:
    """The metrics of a question, as far as its nodes determine them."""
    from scipy.stats import mannwhitneyu

    marks = np.array([is_decisive(node.response) for node in nodes], bool)
    children = np.array([node.decision.children for node in nodes])
    deltas = np.array([node.decision.delta for node in nodes])
    on_policy = np.array([node.on_policy for node in nodes], bool)
    decisive, other = deltas[on_policy & marks], deltas[on_policy & ~marks]
    metrics: dict[str, float] = {}
    for name, values in (("decisive", decisive), ("other", other)):
        if len(values):
            metrics |= {f"{name}/rise_share": float((values > 0).mean()), f"{name}/delta": float(values.mean())}
    if num_pairs := len(decisive) * len(other):
        metrics["decisive/auc"] = float(mannwhitneyu(decisive, other).statistic) / num_pairs
    if forks := int(children.sum()):
        metrics["decisive/fork_share"] = float(children[marks].sum()) / forks
    return metrics
