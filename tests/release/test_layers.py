"""release may use the tests' tables and servers; only tests/release, tests/gpu and tests/docs may import from it."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_only_the_tests_of_release_gpus_and_documents_import_it():
    imports = re.compile(r"^\s*(?:from|import) release\b", re.MULTILINE)
    importing = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("*.py") if imports.search(path.read_text())}
    assert importing == {"docs", "gpu", "release"}
