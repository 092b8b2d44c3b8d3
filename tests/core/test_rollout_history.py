import json

import numpy as np
import pytest

from rllib_arpo.core.rollout_history import NO_HISTORY, EarlierQuestion, RolloutHistory


def history() -> RolloutHistory:
    of_two = RolloutHistory(num_questions=np.int64(2))  # As numpy's search spaces give it.
    of_two.extend(
        [
            EarlierQuestion({"search": [9.0]}, [-9.0]),
            EarlierQuestion({"search": [1.0, 2.0, 6.0], "python": [0.5]}, [0.1, -0.3, 0.7], depths=[1, 2, 1]),
            EarlierQuestion({"search": [3.0]}, [0.2, 0.4], depths=[2, 3]),
        ]
    )
    return of_two


def test_mean_per_tool_of_the_last_questions():
    reference = history().reference()
    assert reference.by_tool == {"search": pytest.approx(3.0), "python": 0.5}
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


def test_nothing_is_known_at_the_start():
    empty = RolloutHistory(3)
    assert empty.reference(share=0.3) == NO_HISTORY
    empty.extend([EarlierQuestion({})])
    assert empty.reference(share=0.3) == NO_HISTORY


def test_the_state_survives_json_and_keeps_the_order():
    restored = RolloutHistory(2)
    restored.set_state(json.loads(json.dumps(history().get_state())))
    everything = {"share": 0.4, "by_depth": True}
    assert restored.reference(**everything) == history().reference(**everything)
    restored.extend([EarlierQuestion({"python": [1.5]})])
    # The oldest of the two is gone.
    assert restored.reference().by_tool == {"search": 3.0, "python": 1.5}
