import json
import math

import numpy as np
import pytest

from rllib_arpo.core.fork_plan import NodeGroup
from rllib_arpo.core.rollout_history import NO_HISTORY, EarlierQuestion, RolloutHistory

#: Below one of two responses returns differ: within 0.5, between max((1/6 - 0.5) / (4/3), 0).
FORKED = NodeGroup("search", 1, [[0.0, 1.0], [0.0]], {"tool_calls": [1, 1]}, {"tool_calls": [2, 3, 1]})


def history() -> RolloutHistory:
    of_two = RolloutHistory(num_questions=np.int64(2))  # As numpy's search spaces give it.
    of_two.extend(
        [
            EarlierQuestion({"search": [9.0]}, [-9.0], {"tool_calls": [99]}),
            EarlierQuestion(
                {"search": [1.0, 2.0, 6.0], "python": [0.5]}, [0.1, -0.3, 0.7], {"tool_calls": [1, 2]}, depths=[1, 2, 1]
            ),
            EarlierQuestion({"search": [3.0]}, [0.2, 0.4], {"tool_calls": [6]}, [FORKED], depths=[2, 3]),
        ]
    )
    return of_two


def test_mean_per_tool_of_the_last_questions():
    reference = history().reference()
    assert reference.by_tool == {"search": pytest.approx(3.0), "python": 0.5}
    assert reference.after_tool == pytest.approx(12.5 / 5)


def test_a_quantile_is_of_each_tool_and_leaves_the_mean_over_all_alone():
    reference = history().reference(0.5)
    assert reference.by_tool == {"search": pytest.approx(2.5), "python": 0.5}
    assert reference.after_tool == pytest.approx(12.5 / 5)


def test_a_share_of_the_responses_exceeds_the_rise():
    assert history().reference().rise is None
    # Of -0.3, 0.1, 0.2, 0.4 and 0.7 the two last, and one.
    for share, expected in ((0.4, 2), (0.2, 1)):
        rise = history().reference(share=share).rise
        assert sum(dh > rise for dh in (-0.3, 0.1, 0.2, 0.4, 0.7)) == expected


def test_the_rises_at_each_depth():
    assert history().reference().rises_at == {}
    assert history().reference(by_depth=True).rises_at == {1: [0.1, 0.7], 2: [-0.3, 0.2], 3: [0.4]}


def test_the_mean_cost_of_a_path():
    assert history().reference().path_costs == {"tool_calls": 3.0}


def test_nothing_is_known_at_the_start():
    empty = RolloutHistory(3)
    assert empty.reference(share=0.3) == NO_HISTORY
    empty.extend([EarlierQuestion({})])
    assert empty.reference(0.9) == NO_HISTORY


def test_the_state_survives_json_and_keeps_the_order():
    restored = RolloutHistory(2)
    restored.set_state(json.loads(json.dumps(history().get_state())))
    everything = {"share": 0.4, "plan_by": "tool_calls", "by_depth": True}
    assert restored.reference(**everything) == history().reference(**everything)
    assert restored.reference(**everything).planned_suffixes == {("search", 1): math.inf}
    restored.extend([EarlierQuestion({"python": [1.5]})])
    # The oldest of the two is gone.
    assert restored.reference().by_tool == {"search": 3.0, "python": 1.5}


def test_a_state_of_a_version_without_plans_and_depths_is_read():
    later = {"nodes", "depths"}
    state = [{name: value for name, value in old.items() if name not in later} for old in history().get_state()]
    restored = RolloutHistory(2)
    restored.set_state(state)
    assert restored.reference(plan_by="tool_calls", by_depth=True) == history().reference()
