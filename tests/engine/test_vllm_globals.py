import subprocess
import sys

import pytest

PROGRAM = """
import flask
from rllib_arpo.engine.vllm.process_state import readable_globals

watched = flask.request, flask.current_app, flask.session, flask.g
with readable_globals():
    assert all(hasattr(value, "__dict__") for value in watched)
try:
    hasattr(flask.request, "__dict__")
except RuntimeError:
    print("as before")
"""


@pytest.mark.slow
def test_flasks_globals_can_be_read_while_an_engine_is_built():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines()[-1:] == ["as before"], done.stderr
