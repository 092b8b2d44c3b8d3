"""Fixtures of tests that compile, and a count of what is compiled."""

from collections.abc import Iterator

import pytest
import torch

from rllib_arpo.policy.compilation import missing_for_compilation


@pytest.fixture
def compiler() -> Iterator[None]:
    """Nothing is compiled before and after the test, which is skipped where nothing can be."""
    if missing := missing_for_compilation("cpu"):
        pytest.skip(f"torch.compile needs {missing}")
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.reset()


def num_compiled() -> int:
    """How many graphs have been compiled in this test."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]
