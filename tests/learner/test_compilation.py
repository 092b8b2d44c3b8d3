"""An update with compiled parts makes the gradients of an update without."""

from __future__ import annotations

import pytest

from tests.helpers.compilation import compiler
from tests.learner.builders import assert_close, build_learner, make_batch, make_config, metrics, record_gradients

__all__ = ["compiler"]


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("parts", ["head"])
def test_compiled_parts_change_no_gradient(model, questions, parts):
    """Two updates of three optimizer steps, in which passes and trees have many lengths."""
    recorded, entropies = {}, {}
    for choice in ("none", parts):
        config = make_config(model, "float32", learner_compile=choice, max_tokens_per_pass=60, entropy_coeff=0.1, lr=0)
        learner = build_learner(config)
        record_gradients(learner)
        entropies[choice] = [metrics(learner.update(make_batch(config, questions)))["entropy"] for _ in range(2)]
        recorded[choice] = learner.recorded
    assert len(recorded[parts]) == 6
    assert entropies[parts] == pytest.approx(entropies["none"], rel=1e-5)
    for got, expected in zip(recorded[parts], recorded["none"], strict=True):
        assert_close(got, expected, rtol=1e-5)
