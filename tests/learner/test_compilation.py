"""An update with compiled parts makes the gradients of an update without, and compiles a bounded number of times."""

import pytest

from tests.helpers.model_fixtures import num_compiled
from tests.learner import plain
from tests.learner.builders import assert_close, build_learner, make_batch, make_config, metrics, record_gradients
from tests.learner.ranks import Ranks


def updates(config, batches):
    """The gradients of all optimizer steps, and the entropy of each update."""
    learner = build_learner(config)
    record_gradients(learner)
    entropies = [metrics(learner.update(make_batch(config, batch)))["entropy"] for batch in batches]
    return learner.recorded, entropies


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("lora", "checkpointing"), [
    (None, False),
    pytest.param({"r": 2, "target_modules": ["q_proj", "up_proj"]}, True, marks=pytest.mark.slow),
])  # fmt: skip
def test_compiled_parts_change_no_gradient(model, questions, lora, checkpointing):
    """Updates of three optimizer steps, in which passes and trees have many lengths."""
    if lora:
        pytest.importorskip("peft")
    settings = {"max_tokens_per_pass": 60, "entropy_coeff": 0.1, "lr": 0, "gradient_checkpointing": checkpointing}
    batches = [questions, questions[::-1], [plain.random_question(seed, f"q{seed}") for seed in range(20, 24)]]
    got, expected = (
        updates(make_config(model, "float32", learner_compile=choice, **settings).language_model(lora=lora), batches)
        for choice in ("layers", "none")
    )
    assert len(got[0]) == 3 + 3 + 2
    assert got[1] == pytest.approx(expected[1], rel=1e-5)
    for gradients, wanted in zip(got[0], expected[0], strict=True):
        assert_close(gradients, wanted, rtol=1e-5)
    # Forward and backward, for the first length and for all others, and once without entropies or gradients.
    assert num_compiled() <= 2 * 2 + 2 + 2


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_parts_that_are_split_among_learners_are_compiled(model, questions):
    expected = Ranks().gradients(model, questions)
    assert_close(Ranks("gloo", "fsdp2", learner_compile="layers").gradients(model, questions), expected, rtol=1e-5)
    assert num_compiled() > 0
