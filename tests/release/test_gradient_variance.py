"""The variance of gradients: estimates by hand and against plain ones, and that weights stay as they are."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from release.evidence import gradient_variance
from release.evidence.gradient_estimates import Sample, estimates, interval, sketch
from release.evidence.gradient_variance import REFERENCE, GradientCatcher, measure, read_rows, table, write_rows
from tests.learner import plain
from tests.learner.builders import build_learner, make_batch, make_config, parameters, record_gradients
from tests.release.study_rows import write_study


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


def test_sketches_keep_inner_products_on_average():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 50))
    products = [sketch(a, 8, seed) @ sketch(b, 8, seed) for seed in range(4000)]
    error = np.std(products) / np.sqrt(len(products))
    assert abs(np.mean(products) - a @ b) < 4 * error


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


def test_the_learner_computes_gradients_and_takes_no_step(model_folder):
    """The mean over the two minibatches, as they are without the catcher, whose step comes between them."""
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(2)]
    config = make_config(model_folder, questions_per_minibatch=1, lr=0.0)
    usual, caught = build_learner(config), build_learner(config)
    record_gradients(usual)
    usual.update(make_batch(config, questions))
    before, catcher = parameters(caught), GradientCatcher()
    catcher(caught)
    caught.update(make_batch(config, questions))
    steps = [torch.cat([g.flatten() for g in step.values()]).double().numpy() for step in usual.recorded]
    assert len(steps) == 2
    np.testing.assert_allclose(catcher.take(), (steps[0] + steps[1]) / 2, rtol=1e-6, atol=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in parameters(caught).items())
    with pytest.raises(ValueError, match="had no optimizer step"):
        catcher.take()


def test_all_arms_are_compared_with_the_mean_gradient_of_the_reference(tmp_path, monkeypatch):
    """Random forks have the threshold's rate."""
    sampled, references = [], []

    def sample_batches(_recipe, arguments, num_batches, reference, own):
        sampled.append(f"{own['arm']}: {' '.join(arguments)}")
        references.append(None if reference is None else reference.tolist())
        gradients = np.random.default_rng(own["seed"]).normal(size=(num_batches, 2)) + 1.0
        figures = {"tool_calls": 10, "forks_per_question": 2.0, "fork_rate": 0.25}
        rows = [
            {
                **own,
                **figures,
                "batch": batch,
                "squared_norm": float(gradient @ gradient),
                "squared_norm_of_sum": float((gradients[: batch + 1].sum(0) ** 2).sum()),
                "reference_dot": None if reference is None else float(gradient @ reference),
                "sketch": gradient.tolist(),
            }
            for batch, gradient in enumerate(gradients)
        ]
        return rows, np.array([24.0, 12.0])

    monkeypatch.setattr(gradient_variance, "sample_batches", sample_batches)
    study, output = write_study(tmp_path), tmp_path / "rows.parquet"
    with pytest.raises(ValueError, match=r"^random: has the fork rate of 'threshold'; name it as well\.$"):
        measure(study, study.arms_named(["random"]), 3)
    assert not sampled
    write_rows(measure(study, study.arms_named(None), 3), output)
    assert sampled == [
        f"{REFERENCE}: --lr 1e-3 --algo GRPO --seed 1000000",
        "grpo: --lr 1e-3 --algo GRPO --seed 0",
        "threshold: --lr 1e-3 --seed 0",
        "random: --lr 1e-3 --branching random --random-fork-probability 0.2500 --seed 0",
    ]
    assert references == [None, *[[2.0, 1.0]] * 3]
    shown = table(read_rows(output), "grpo").splitlines()
    assert shown[2].startswith("| grpo | 3 | 10 | 2.00 |")
    assert shown[4].startswith("| reference | 12 | 10 | 2.00 |")


@pytest.mark.parametrize(("line", "message"), [
    ("--study {0}/none.yaml --output {0}/rows.parquet", "error: {0}/none.yaml: there is no such study; "),
    ("--table {0}/none.parquet", "error: {0}/none.parquet: not a readable parquet file ("),
    ("--output {0}/rows.parquet --batches 0", "argument --batches: '0' is not an integer >= 1\n"),
    ("--table {0}/study.parquet --arms grpo", "argument --arms: does nothing with --table\n"),
    ("--table {0}/study.parquet", "error: {0}/study.parquet: has no rows of gradients, each of an arm and a batch.\n"),
    ("--table {0}/twice.parquet", "error: {0}/twice.parquet: has a batch of an arm twice.\n"),
])  # fmt: skip
def test_a_wrong_command_line_is_a_sentence(tmp_path, monkeypatch, capsys, line, message):
    row = {"arm": "grpo", "batch": 0, "squared_norm_of_sum": 1.0, "sketch": [1.0]}
    pq.write_table(pa.table({"arm": ["grpo"]}), tmp_path / "study.parquet")
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "twice.parquet")
    monkeypatch.setattr("sys.argv", ["gradient_variance", *line.format(tmp_path).split()])
    with pytest.raises(SystemExit):
        sys.exit(gradient_variance.main())
    assert message.format(tmp_path) in capsys.readouterr().err
