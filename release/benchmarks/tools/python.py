"""Benchmark of the python tool: how long calls take, how many run at a time, what they leave, and what attacks achieve.

`measure(quick)` returns, each figure measured for real on this machine:

python_warm_p50_ms, python_warm_p99_ms: one call after the other on a warm server, each a program that uses numpy and
    sympy (`CODE`); `python_warm_calls` of them.
python_64_calls_per_s, python_64_p50_ms, python_64_p99_ms, python_p99_over_p50_64: 64 clients that call at once, each
    the next call when its last one is answered; `python_64_calls` in all. A call's time includes its waiting.
python_cold_64_calls_per_s: the same program, imports included, in a cold `bwrap python` for each call, as many at a
    time as there are CPUs (more at a time are slower). python_vs_cold_64 is the ratio of the two rates.
python_calls: the number of calls in a row (1,000 when quick, otherwise 10,000). python_rss_growth_mb, python_fd_growth
    and python_process_growth: the differences between after the last and after the first tenth of them, of this process
    and all processes of the server together, in resident memory (MiB), open files and number of processes.
attacks_tried, attacks_succeeded: the table of tests/envs/sandbox/attacks, made as this user. One that took effect,
    harmed a neighbouring call or a later one counts as succeeded, and so does anything left behind.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from rllib_arpo.envs.sandbox import bubblewrap
from rllib_arpo.envs.sandbox.backends import LocalBackend
from tests.envs.sandbox import campaign
from tests.helpers.processes import descendants

CODE = """
import numpy, sympy
x = sympy.Symbol("x")
print(sympy.expand((x + {number}) ** 2), int(numpy.arange(5).sum()))
"""
NUM_CLIENTS = 64
TIME_LIMIT_S = 120.0


def measure(quick: bool) -> dict[str, float]:
    """All figures of this module; quick: in under 100 s on two cores.

    Raises:
        RuntimeError: a call did not give the right answer.
    """
    server = LocalBackend().server()
    server.start()
    try:
        found = asyncio.run(_warm(server, 200 if quick else 1000))
        found |= asyncio.run(_many_clients(server, 10 if quick else 50))
        found |= _cold(16 if quick else 128)
        found["python_vs_cold_64"] = found["python_64_calls_per_s"] / found["python_cold_64_calls_per_s"]
        found |= asyncio.run(_in_a_row(server, 1000 if quick else 10000))
    finally:
        server.close()
    return found | _attacks()


async def _timed_call(server, number: int) -> float:
    begin = time.perf_counter()
    reply = await server.run(CODE.format(number=number), TIME_LIMIT_S)
    seconds = time.perf_counter() - begin
    if reply.output != f"x**2 + {2 * number}*x + {number**2} 10\n":
        raise RuntimeError(f"the python tool answered {reply}")
    return seconds


async def _warm(server, num_calls: int) -> dict[str, float]:
    times = [await _timed_call(server, 2 + number) for number in range(num_calls)]
    p50, p99 = _percentiles_ms(times)
    return {"python_warm_calls": num_calls, "python_warm_p50_ms": p50, "python_warm_p99_ms": p99}


async def _many_clients(server, calls_each: int) -> dict[str, float]:
    times: list[float] = []

    async def client(first: int) -> None:
        for number in range(calls_each):
            times.append(await _timed_call(server, first + number))

    seconds = await _timed(lambda: _together(client(2 + 100 * i) for i in range(NUM_CLIENTS)))
    p50, p99 = _percentiles_ms(times)
    return {
        "python_64_calls": len(times),
        "python_64_calls_per_s": len(times) / seconds,
        "python_64_p50_ms": p50,
        "python_64_p99_ms": p99,
        "python_p99_over_p50_64": p99 / p50,
    }


async def _together(coroutines) -> None:
    await asyncio.gather(*coroutines)


async def _timed(run: Callable[[], Coroutine]) -> float:
    begin = time.perf_counter()
    await run()
    return time.perf_counter() - begin


def _cold(num_calls: int) -> dict[str, float]:
    """Calls per second of a new `bwrap python` for each call, with the same view of the files as the server's."""
    packages = bubblewrap.site_packages()

    def call(number: int) -> None:
        program = f"import sys; sys.path += {list(packages.values())!r}\n{CODE.format(number=number)}"
        with bubblewrap.namespace_options() as (options, fds):
            view = bubblewrap.view_options(packages)
            command = [bubblewrap.find_bwrap(), *options, *view, "--", bubblewrap.interpreter(), "-S", "-c", program]
            environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, pass_fds=fds, env=environment, capture_output=True, text=True)
        if done.stdout != f"x**2 + {2 * number}*x + {number**2} 10\n":
            raise RuntimeError(f"cold python answered {done.stdout!r} {done.stderr!r}")

    num_workers = len(os.sched_getaffinity(0))
    call(2)
    with ThreadPoolExecutor(num_workers) as threads:
        begin = time.perf_counter()
        list(threads.map(call, range(2, 2 + num_calls)))
        seconds = time.perf_counter() - begin
    return {"python_cold_64_calls_per_s": num_calls / seconds}


async def _in_a_row(server, num_calls: int) -> dict[str, float]:
    for number in range(num_calls // 10):
        await _timed_call(server, 2 + number)
    before = _footprint()
    for number in range(num_calls // 10, num_calls):
        await _timed_call(server, 2 + number)
    after = _footprint()
    growth = {key: after[key] - before[key] for key in before}
    return {"python_calls": num_calls} | {f"python_{key}_growth{unit}": growth[key] for key, unit in _UNITS.items()}


_UNITS = {"rss": "_mb", "fd": "", "process": ""}


def _footprint() -> dict[str, float]:
    """Memory, open files and number of this process and its descendants."""
    time.sleep(0.5)  # the last call's namespaces are taken down
    pids = [os.getpid(), *descendants(zombies=True)]
    return {
        "rss": sum(_resident_kb(pid) for pid in pids) / 1024,
        "fd": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "process": len(pids),
    }


def _resident_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no memory figures")


def _attacks() -> dict[str, float]:
    result = campaign.main()
    wrong = {name: what for name, what in result["outcomes"].items() if what}
    for name, what in wrong.items():
        print(f"attack {name}: {'; '.join(what)}", file=sys.stderr)
    if result["leftovers"]:
        print(f"left behind: {result['leftovers']}", file=sys.stderr)
    return {"attacks_tried": len(result["outcomes"]), "attacks_succeeded": len(wrong) + len(result["leftovers"])}


def _percentiles_ms(times: list[float]) -> tuple[float, float]:
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return float(p50), float(p99)


if __name__ == "__main__":
    for key, value in measure(quick="--quick" in sys.argv).items():
        print(f"{key} = {value:.3f}")
