"""One small question by hand, with one nested fork and one masked trajectory.

prompt [1, 2]
|- "0": turn [10, 11], tool [90], turn [12]            reward 1
|  `- "0.0": below the tool response, turn [13, 14, 15] reward 0
|- "1": turn [20]                                       reward 1
`- "2": turn [30], stopped by the deadline              reward 0, does not count
"""

from __future__ import annotations

import pytest

from rllib_arpo.core.tree import QuestionTree, StopReason
from tests.helpers.trees import make_trajectory, make_tree, make_turn


@pytest.fixture
def question() -> QuestionTree:
    return make_tree(
        [1, 2],
        [
            make_trajectory("0", [make_turn([10, 11], [90], log_prob=-0.5), make_turn([12])], reward=1.0),
            make_trajectory("1", [make_turn([20])], reward=1.0),
            make_trajectory("2", [make_turn([30])], stop_reason=StopReason.DEADLINE),
            make_trajectory("0.0", [make_turn([13, 14, 15], log_prob=-2.0)], num_inherited_turns=1),
        ],
    )
