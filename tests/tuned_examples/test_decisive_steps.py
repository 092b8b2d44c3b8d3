"""The places of rises and forks: the metrics of trees written by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rllib_arpo.core.figures import ExaminedNode
from rllib_arpo.core.tree import ForkDecision
from tests.helpers.trees import make_trajectory, make_tree, make_turn
from tuned_examples import decisive_steps
from tuned_examples.decisive_steps import DecisiveSteps, decisiveness

TEXTS = {1: "A: see B", 2: "B: red C, blue D", 3: "C: see E"}
DECISIVE, OTHER = 2, 3


def node(response: int, delta: float, children: int = 0, *, from_prompt: bool = True) -> ExaminedNode:
    decision = ForkDecision(level=0.0, delta=delta, children=children)
    return ExaminedNode("search", 0.5, from_prompt, decision, np.array([response], np.int32), 1)


def shows_two(response: np.ndarray) -> bool:
    return response[0] == DECISIVE


def decided(turn, delta: float, children: int = 0):
    return replace(turn, decision=ForkDecision(level=0.0, delta=delta, children=children))


#: dH is -0.5, 0.25 (a fork, at the decisive page) and 0.125; the fork's own node is off policy.
FORKED = make_tree(
    [0],
    [
        make_trajectory(
            "0",
            [
                make_turn([5], observation=[1]),
                decided(make_turn([5], observation=[2]), -0.5),
                decided(make_turn([5], observation=[3]), 0.25, children=1),
                decided(make_turn([6]), 0.125),
            ],
        ),
        make_trajectory(
            "0.0", [make_turn([5], observation=[3]), decided(make_turn([6]), 0.75, children=1)], num_inherited_turns=2
        ),
    ],
)
#: One node, where no choice is to be made.
PLAIN = make_tree([0], [make_trajectory("0", [make_turn([5], observation=[1]), decided(make_turn([6]), 0.5)])])


def test_the_driver_adds_the_means_over_the_iterations_questions(monkeypatch):
    """However the questions were handed over: three questions of which two are alike weigh as three."""
    tokenizer = SimpleNamespace(decode=lambda tokens: TEXTS[int(tokens[0])])
    monkeypatch.setattr(decisive_steps, "load_tokenizer", {"model": tokenizer}.get)
    monkeypatch.setattr(decisive_steps, "shows_a_choice", lambda text: "," in text)
    sampled = [SimpleNamespace(tree=tree, entropy_window=2) for tree in (FORKED, PLAIN, PLAIN)]
    algorithm = SimpleNamespace(config=SimpleNamespace(model_name_or_path="model"), last_sampled=sampled)
    result = {"env_runners": {"accuracy": 0.5}}
    DecisiveSteps().on_train_result(algorithm=algorithm, metrics_logger=None, result=result)
    assert result == {
        "env_runners": {
            "accuracy": 0.5,
            "decisive": {"rise_share": 1.0, "auc": 1.0, "fork_share": 0.5},
            # Of FORKED 1/2, of PLAIN 1.
            "other": {"rise_share": pytest.approx(2.5 / 3)},
        }
    }


def test_the_auc_counts_pairs_and_half_of_the_ties():
    nodes = [node(DECISIVE, 0.5), node(DECISIVE, 0.1), node(OTHER, 0.1), node(OTHER, 0.3)]
    pairs = {(0.5, 0.1): 1, (0.5, 0.3): 1, (0.1, 0.1): 0.5, (0.1, 0.3): 0}
    assert decisiveness(nodes, shows_two)["decisive/auc"] == sum(pairs.values()) / 4


def test_what_the_nodes_do_not_tell_is_left_out():
    assert decisiveness([], shows_two) == {}
    assert decisiveness([node(OTHER, -0.5, 2)], shows_two) == {
        "other/rise_share": 0.0,
        "decisive/fork_share": 0.0,
    }
