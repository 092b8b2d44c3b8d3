"""Metrics of the steps of a trail at which the model has to choose, for the studies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from rllib_arpo.core.figures import ExaminedNode, examined_nodes
from rllib_arpo.envs.protocols.prompts import load_tokenizer
from rllib_arpo.envs.tasks.trails import shows_a_choice
from rllib_arpo.rollout.metric_table import nested

if TYPE_CHECKING:
    from rllib_arpo.arpo import ARPO


class DecisiveSteps(RLlibCallback):
    """Compares the responses that show several hits with the others.

    Once an iteration it adds these metrics below "env_runners" to the result. Each is a mean over the questions that
    have such nodes (or forks); a metric that no question has is left out:

    - `decisive/rise_share`, `other/rise_share`: share of the decisive (other) nodes with dH > 0;
    - `decisive/auc`: how often dH is larger at a decisive node than at another node (0.5: no relation);
    - `decisive/fork_share`: share of the forked trajectories that begin at a decisive node.

    The first three cover only trajectories from the prompt, because forks start where the entropy is high.
    """

    def on_train_result(self, *, algorithm: ARPO, result: dict[str, Any], **_kwargs: Any) -> None:
        tokenizer = load_tokenizer(algorithm.config.model_name_or_path)
        metrics = mean_decisiveness(
            (examined_nodes(question.tree, question.entropy_window) for question in algorithm.last_sampled),
            lambda response: shows_a_choice(tokenizer.decode(response)),
        )
        result.setdefault(ENV_RUNNER_RESULTS, {}).update(nested(metrics))


def mean_decisiveness(
    questions: Iterable[Sequence[ExaminedNode]], is_decisive: Callable[[np.ndarray], bool]
) -> dict[str, float]:
    """The metrics of `decisiveness`, each as the mean over the questions that have it."""
    values: dict[str, list[float]] = {}
    for nodes in questions:
        for name, value in decisiveness(nodes, is_decisive).items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(found)) for name, found in values.items()}


def decisiveness(nodes: Sequence[ExaminedNode], is_decisive: Callable[[np.ndarray], bool]) -> dict[str, float]:
    """The metrics of a question, as far as its nodes determine them."""
    from scipy.stats import mannwhitneyu

    marks = np.array([is_decisive(node.response) for node in nodes], bool)
    children = np.array([node.decision.children for node in nodes])
    deltas = np.array([node.decision.delta for node in nodes])
    from_prompt = np.array([node.from_prompt for node in nodes], bool)
    decisive, other = deltas[from_prompt & marks], deltas[from_prompt & ~marks]
    groups = {"decisive": decisive, "other": other}
    metrics = {f"{name}/rise_share": float((values > 0).mean()) for name, values in groups.items() if len(values)}
    if num_pairs := len(decisive) * len(other):
        metrics["decisive/auc"] = float(mannwhitneyu(decisive, other).statistic) / num_pairs
    if forks := int(children.sum()):
        metrics["decisive/fork_share"] = float(children[marks].sum()) / forks
    return metrics
