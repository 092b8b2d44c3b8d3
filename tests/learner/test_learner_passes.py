"""An update is cut into passes, and some pieces are left out of it."""

import pytest

from rllib_arpo.core.columns import TOKEN_IDS
from tests.helpers.trees import make_trajectory, make_tree, make_turn
from tests.learner.builders import (
    assert_close,
    build_learner,
    make_batch,
    make_config,
    metrics,
    parameters,
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


def test_the_split_into_passes_changes_no_gradient(model, questions):
    recorded = {}
    for max_tokens_per_pass in (10_000, 60, 30):
        config = make_config(model, questions_per_minibatch=5, max_tokens_per_pass=max_tokens_per_pass)
        learner = build_learner(config)
        record_gradients(learner)
        learner.update(make_batch(config, questions))
        [recorded[max_tokens_per_pass]] = learner.recorded
    # 60 holds every tree, 30 only parts of the larger ones.
    assert_close(recorded[60], recorded[10_000], rtol=1e-12)
    assert_close(recorded[30], recorded[10_000], rtol=1e-12)


def test_groups_without_signal_have_no_gradient(model):
    equal = make_tree([3], [make_trajectory(str(i), [make_turn([i])], reward=1.0) for i in range(3)])
    alone = make_tree([3], [make_trajectory("0", [make_turn([1])], reward=1.0)])
    differ = make_tree([3], [make_trajectory(str(i), [make_turn([i])], reward=float(i)) for i in range(3)])
    config = make_config(model, weight_decay=0.1)
    learner = build_learner(config)
    learner.update(make_batch(config, [differ]))  # From now on Adam has momentum.
    before = parameters(learner)

    result = metrics(learner.update(make_batch(config, [equal, alone])))

    assert result["groups_without_signal"] == 2
    assert result["grad_norm"] == 0
    assert_close(parameters(learner), before, rtol=0.0)


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
    gradients = []
    for skip in (True, False):
        config = make_config(model, questions_per_minibatch=3, **{"skip_groups_without_signal": skip, **options})
        learner = build_learner(config)
        record_gradients(learner)
        sizes = []
        forward = learner.module["default_policy"].forward_train

        def counting(batch, forward=forward, sizes=sizes):
            sizes.append(len(batch[TOKEN_IDS]))
            return forward(batch)

        learner.module["default_policy"].forward_train = counting
        learner.update(make_batch(config, [differ[0], equal, differ[1]]))
        gradients.append(learner.recorded)
        if skip:
            computed = sum(sizes)
    assert_close(gradients[0][0], gradients[1][0], rtol=1e-12)
    # `equal` has a prompt of one token and three trajectories of one.
    assert sum(sizes) - computed == (4 if skips else 0)
