"""Nightly runs of recipes: `pytest -m nightly tests/tuned_examples`."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves nightly runs out unless they are asked for."""
    if "nightly" in (config.option.markexpr or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("nightly")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
