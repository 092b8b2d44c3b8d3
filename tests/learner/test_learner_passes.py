"""An update is cut into passes, and some pieces are left out of it."""

import pytest

from tests.helpers.trees import make_trajectory, make_tree, make_turn
from tests.learner.builders import (
    assert_close,
    build_learner,
    make_batch,
    make_config,
    metrics,
    record_gradients,
)

pytestmark = pytest.mark.usefixtures("float64_norms")


def test_a_single_step_needs_no_extra_forward_pass(model, questions):
    """... and a batch of several steps is scored once, before the first."""
    calls = {5: 1, 3: 1 + 2}
    for questions_per_minibatch, expected in calls.items():
        config = make_config(model, questions_per_minibatch=questions_per_minibatch)
        learner = build_learner(config)
        module, count = learner.module["default_policy"], []
        forward = module._forward_train

        def counting(batch, forward=forward, count=count, **kwargs):
            count.append(kwargs)
            return forward(batch, **kwargs)

        module._forward_train = counting
        result = metrics(learner.update(make_batch(config, questions)))
        assert len(count) == expected
        # Log-probs before the update need no entropies.
        assert [kwargs for kwargs in count if kwargs] == [{"with_entropy": False}] * (expected > 1)
        assert (result["ratio_mean"] == 1.0) == (questions_per_minibatch == 5)


@pytest.mark.parametrize(
    ("options", "skips"),
    [
        ({}, True),
        ({"skip_groups_without_signal": False}, False),
        ({"kl_coeff": 0.1}, False),
        ({"entropy_coeff": 0.1}, False),
        ({"entropy_advantage_coeff": 0.5}, True),
    ],
)
def test_groups_without_signal_are_not_computed(model, options, skips):
    """The gradient is the same; where a KL or an entropy bonus drives every token they are computed.

    Their entropies count among the minibatch's in any case.
    """
    turns = [make_turn([i], entropy=1.0 + i) for i in range(3)]
    equal = make_tree([3], [make_trajectory(str(i), [turns[i]], reward=1.0) for i in range(3)], "equal")
    differ = [
        make_tree([4], [make_trajectory(str(i), [make_turn([i, n])], reward=float(i)) for i in range(2)], f"q{n}")
        for n in range(2)
    ]
    gradients, computed = [], []
    for skip in (True, False):
        config = make_config(model, questions_per_minibatch=3, **{"skip_groups_without_signal": skip, **options})
        learner = build_learner(config)
        record_gradients(learner)
        result = metrics(learner.update(make_batch(config, [differ[0], equal, differ[1]])))
        gradients.append(learner.recorded[0])
        computed.append(result["tokens_computed"])
    assert_close(*gradients, rtol=1e-12)
    # `equal` has a prompt of one token and three trajectories of one.
    assert computed[1] - computed[0] == (4 if skips else 0)
