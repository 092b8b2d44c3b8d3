"""The estimates of a gradient's variance, against plain ones."""

import numpy as np
import pytest

from release.evidence.gradient_variance import Sample, estimates, interval


def sample_of(gradients: np.ndarray, calls: float = 10.0) -> Sample:
    """[n, d]; the sketch is the gradient itself."""
    total = gradients.sum(0)
    n = len(gradients)
    return Sample(
        np.full(n, calls),
        (gradients**2).sum(1),
        float(total @ total),
        gradients,
        gradients @ np.ones(gradients.shape[1]),
    )


def test_the_variance_is_the_trace_of_the_covariance():
    gradients = np.random.default_rng(1).normal(size=(7, 3)) + 0.5
    sample = sample_of(gradients)
    assert sample.variance == pytest.approx(np.trace(np.cov(gradients, rowvar=False)))
    pairs = [gradients[i] @ gradients[j] for i in range(7) for j in range(7) if i != j]
    assert sample.signal == pytest.approx(np.mean(pairs))


def test_resampled_figures_lie_around_those_of_the_sample():
    gradients = np.random.default_rng(2).normal(size=(40, 3)) + 1.0
    sample = sample_of(gradients)
    found = estimates(sample, num_resamples=4000)
    assert found["signal"][0] == pytest.approx(sample.signal)
    assert found["variance"][0] == pytest.approx(sample.variance)
    assert found["signal"][1:].mean() == pytest.approx(sample.signal, rel=0.02)
    assert found["variance"][1:].mean() == pytest.approx(sample.variance, rel=0.02)
    _, low, high = interval(found["variance"])
    assert low < sample.variance < high
    assert found["calls_to_signal"][0] == pytest.approx(10 * sample.variance / sample.signal)
    assert found["signal_to_noise"][0] == pytest.approx(sample.signal / sample.variance)


def test_a_mean_gradient_along_the_reference_has_cosine_one():
    """Both means are (2, 0); the noise is across it."""
    noise = np.array([[2.0, 1.0], [2.0, -1.0], [2.0, 1.0], [2.0, -1.0]])
    sample = sample_of(noise)
    assert sample.signal == pytest.approx(4 - 1 / 3)
    dots = noise @ np.array([2.0, 0.0])
    aligned = Sample(sample.calls, sample.squared_norms, sample.squared_norm_of_sum, noise, dots)
    cosine = estimates(aligned, reference_signal=4.0, num_resamples=5)["cosine"]
    assert cosine[0] == pytest.approx(4.0 / np.sqrt((4 - 1 / 3) * 4.0))
    assert np.isnan(estimates(aligned, reference_signal=-1.0, num_resamples=5)["cosine"]).all()


def test_without_a_signal_no_number_of_calls_is_enough():
    found = estimates(sample_of(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])), num_resamples=100)
    assert found["signal"][0] < 0
    assert found["calls_to_signal"][0] == np.inf
    assert interval(found["calls_to_signal"])[2] == np.inf
