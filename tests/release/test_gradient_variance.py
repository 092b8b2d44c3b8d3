"""The estimates of a gradient's variance, against plain ones."""

import numpy as np
import pytest

from release.evidence.gradient_variance import estimates, interval


def rows_of(gradients: np.ndarray, reference: tuple[float, ...] = (0.0, 0.0, 0.0)) -> list[dict]:
    """Of gradients [n, d]; the sketch is the gradient itself."""
    sums = np.cumsum(gradients, axis=0)
    return [
        {
            "tool_calls": 10,
            "squared_norm": gradient @ gradient,
            "squared_norm_of_sum": total @ total,
            "sketch": gradient.tolist(),
            "reference_dot": gradient @ reference[: len(gradient)],
        }
        for gradient, total in zip(gradients, sums, strict=True)
    ]


def test_the_variance_is_the_trace_of_the_covariance():
    gradients = np.random.default_rng(1).normal(size=(7, 3)) + 0.5
    found = estimates(rows_of(gradients), num_resamples=1)
    assert found["variance"][0] == pytest.approx(np.trace(np.cov(gradients, rowvar=False)))
    pairs = [gradients[i] @ gradients[j] for i in range(7) for j in range(7) if i != j]
    assert found["signal"][0] == pytest.approx(np.mean(pairs))


def test_resampled_figures_lie_around_those_of_the_batches():
    gradients = np.random.default_rng(2).normal(size=(40, 3)) + 1.0
    found = estimates(rows_of(gradients), num_resamples=4000)
    for name in ("signal", "variance"):
        assert found[name][1:].mean() == pytest.approx(found[name][0], rel=0.02)
    value, low, high = interval(found["variance"])
    assert low < value < high
    assert found["calls_to_signal"][0] == pytest.approx(10 * found["variance"][0] / found["signal"][0])


def test_a_mean_gradient_along_the_reference_has_cosine_one():
    """Both means are (2, 0); the noise is across it."""
    rows = rows_of(np.array([[2.0, 1.0], [2.0, -1.0], [2.0, 1.0], [2.0, -1.0]]), reference=(2.0, 0.0))
    found = estimates(rows, reference_signal=4.0, num_resamples=5)
    assert found["signal"][0] == pytest.approx(4 - 1 / 3)
    assert found["cosine"][0] == pytest.approx(4.0 / np.sqrt((4 - 1 / 3) * 4.0))
    assert np.isnan(estimates(rows, reference_signal=-1.0, num_resamples=5)["cosine"]).all()


def test_without_a_signal_no_number_of_calls_is_enough():
    found = estimates(rows_of(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])), num_resamples=100)
    assert found["signal"][0] < 0
    assert found["calls_to_signal"][0] == np.inf
    assert interval(found["calls_to_signal"])[2] == np.inf
