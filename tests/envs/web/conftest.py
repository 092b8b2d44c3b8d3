"""Fixtures of the tests of rendered pages."""

import shutil

import pytest


@pytest.fixture
def chromium() -> None:
    pytest.importorskip("playwright")
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("Chromium is not installed: pages are not rendered.")
