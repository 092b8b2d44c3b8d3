"""Runs code and shows what it printed, or the value of its last expression, or one line of error.

Stands alone: the source of this file is also sent to remote sandboxes (`backends.py`).
"""

import ast
import contextlib
import os
import sys
import threading
import traceback
import types


class Output:
    """Standard output that knows whether anything was written."""

    def __init__(self, stream):
        self.stream = stream
        self.used = False

    def write(self, text):
        self.used = self.used or bool(text)
        return self.stream.write(text)

    def __getattr__(self, name):
        return getattr(self.stream, name)


def new_variables():
    """The variables of a fresh `__main__`, for the code and for whatever looks its classes up there."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    return module.__dict__


def execute(code, variables, ends=True):
    """Runs `code`; shows the value of a last expression if nothing was printed. Returns the exit code.

    Args:
        ends: whether the process ends after this code.
    """
    output = sys.stdout = Output(sys.stdout)
    try:
        module = ast.parse(code, "<code>")
        last = module.body.pop() if module.body and isinstance(module.body[-1], ast.Expr) else None
        exec(compile(module, "<code>", "exec"), variables)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), variables)
            if value is not None and not output.used:
                print(repr(value))
    except SystemExit as end:
        if not isinstance(end.code, (int, type(None))):
            print(end.code)
        return 0 if end.code in (None, 0) else 1
    except BaseException as error:
        print(describe(error))
        return 1
    finally:
        wait_for_threads(ends)
        flush(output)
        sys.stdout = output.stream
    return 0


def wait_for_threads(ends):
    """Waits for the program's threads, as the interpreter does at its end; they still print to this `sys.stdout`.

    The threads of a pool wait for work until the pools are closed, after which none takes any more.
    """
    pools = sys.modules.get("concurrent.futures.thread")
    if pools and ends:
        pools._python_exit()
    kept = {threading.current_thread(), *(pools._threads_queues if pools else ())}
    while threads := [one for one in threading.enumerate() if not (one.daemon or one in kept)]:
        for one in threads:
            one.join()


def replay(codes, variables):
    """Runs the earlier `codes` of a session without showing their output. Returns whether all succeeded again."""
    streams, null = (sys.stdout, sys.stderr), os.open(os.devnull, os.O_WRONLY)
    flush(*streams)
    kept = {fd: os.dup(fd) for fd in (1, 2)}
    for fd in kept:
        os.dup2(null, fd)
    try:
        return all(execute(code, variables, ends=False) == 0 for code in codes)
    finally:
        flush(*streams)
        for fd, shown in kept.items():
            os.dup2(shown, fd)
            os.close(shown)
        os.close(null)


def flush(*streams):
    for stream in streams:
        with contextlib.suppress(ValueError):  # the code may have closed it
            stream.flush()


def describe(error):
    """One line: where in the code, the error's type, its message."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<code>"]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    message = (error.msg if isinstance(error, SyntaxError) else str(error)).strip()
    where = f"Line {line}: " if line else ""
    return f"{where}{type(error).__name__}{': ' if message else ''}{message}"
