"""Other libraries' globals while an engine is built."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def readable_globals() -> Iterator[None]:
    """Within this context Flask's globals (`request`, `current_app`, ...) have values, if Flask is loaded.

    vLLM's CPU build looks at every global of every module, and Flask's raise outside of a request. MLflow's server
    loads Flask, and so may other code that shares a process with an engine.
    """
    flask = sys.modules.get("flask")
    if flask is None:
        yield
        return
    with flask.Flask(__name__).test_request_context():
        yield
