"""The math reward: speed, wrong verdicts on gold answers and on a table of pairs, and the effect of hostile answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from pathlib import Path

import numpy as np

from rllib_arpo.envs.rewards import math_accuracy
from rllib_arpo.envs.rewards.mathematics import accuracy, forms
from rllib_arpo.envs.sandbox.fork_server import shared_server
from tests.envs.rewards import hostile
from tests.helpers.processes import descendants

TABLE = Path(hostile.__file__).with_name("math_pairs.tsv")


def measure(quick: bool) -> dict[str, float]:
    """Measures the reward's comparisons, one after the other unless said otherwise.

    Returns:
        math_p50_ms, math_p99_ms: of a comparison of the table that needs algebra (a process of its own), and
            math_number_p50_ms of one that does not.
        math_checked, math_wrong: verdicts whose right value is known (every gold answer of GSM8K and MATH500 against
            itself, plain and respelled; the table of pairs), and how many of them were wrong.
        math_cross_checked, math_cross_equal: pairs of differently written gold answers of MATH500, and how many were
            called equal; tests/envs/rewards/test_golds.py lists those that differ in spelling or units only.
        math_hostile_tried, math_hostile_max_s, math_hostile_accepted: hostile answers, the longest verdict on one, and
            how many counted as right; math_hostile_processes_left: processes that were left behind.
        math_neighbour_max_s: the longest verdict on an honest answer while 16 hostile ones are waiting.
    """
    return asyncio.run(_measure(quick))


async def _measure(quick: bool) -> dict[str, float]:
    await _verdict("\\sqrt{2}", "\\pi")  # starts the worker
    rows = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    golds = [_golds("gsm8k"), _golds("math500")]
    pairs = [(verdict == "equal", gold, answer) for verdict, gold, answer in rows]
    timed = [(expected, *await _timed(gold, answer)) for expected, gold, answer in pairs]
    selves = [(gold, spelled) for gold in itertools.chain(*golds) for spelled in (gold, f" ${gold}$. ", f"x = {gold}")]
    # A name before an answer that has one, before a list or a text, makes it another answer.
    selves = [(gold, spelled) for gold, spelled in selves if spelled[0] != "x" or gold.lstrip("-").isdigit()]
    wrong = sum(expected != verdict for expected, verdict, _ in timed)
    wrong += sum([not await _verdict(gold, spelled) for gold, spelled in selves])
    different = sorted(set(golds[1]))
    cross = random.Random(0).sample(list(itertools.permutations(different, 2)), 150 if quick else 3000)
    cross_equal = sum([await _verdict(gold, answer) for gold, answer in cross])
    algebra_ms, number_ms = [], []
    for (_, gold, answer), (_, _, seconds) in zip(pairs, timed, strict=True):
        (algebra_ms if _needs_algebra(gold, answer) else number_ms).append(1e3 * seconds)
    return {
        "math_p50_ms": float(np.percentile(algebra_ms, 50)),
        "math_p99_ms": float(np.percentile(algebra_ms, 99)),
        "math_timed": len(algebra_ms),
        "math_number_p50_ms": float(np.percentile(number_ms, 50)),
        "math_checked": len(pairs) + len(selves),
        "math_wrong": wrong,
        "math_cross_checked": len(cross),
        "math_cross_equal": cross_equal,
        **await _hostile(quick),
        "math_neighbour_max_s": await _neighbours(),
    }


async def _hostile(quick: bool) -> dict[str, float]:
    answers = hostile.hostile_answers()
    if quick:
        answers = answers[::2]
    before = descendants()
    timed = [await _timed(hostile.GOLD, answer) for answer in answers]
    shared_server(accuracy.SETUP).close()
    left = len(descendants() - before)
    return {
        "math_hostile_tried": len(answers),
        "math_hostile_accepted": sum(verdict for verdict, _ in timed),
        "math_hostile_max_s": max(seconds for _, seconds in timed),
        "math_hostile_processes_left": left,
    }


async def _neighbours() -> float:
    """Seconds until the last of 16 honest answers has its verdict, which arrive behind 16 hostile ones."""
    await _verdict("\\sqrt{2}", "\\pi")
    others = [asyncio.create_task(_verdict(hostile.GOLD, f"9^{{9^{{9^{{{n}}}}}}}")) for n in range(10, 26)]
    await asyncio.sleep(0)
    honest = await asyncio.gather(*(_timed(f"{n}\\sqrt{{2}}", f"\\sqrt{{{2 * n * n}}}") for n in range(2, 18)))
    await asyncio.gather(*others)
    if not all(verdict for verdict, _ in honest):
        return float("inf")
    return max(seconds for _, seconds in honest)


async def _verdict(gold: str, answer: str) -> bool:
    return await math_accuracy(answer, [gold]) == 1.0


async def _timed(gold: str, answer: str) -> tuple[bool, float]:
    begin = time.perf_counter()
    return await _verdict(gold, answer), time.perf_counter() - begin


def _needs_algebra(gold: str, answer: str) -> bool:
    asked = []

    def compare(*pair: str) -> bool:
        asked.append(pair)
        return False

    forms.equal(gold, answer, compare)
    return bool(asked)


def _golds(name: str) -> list[str]:
    file = f"shared/data/benchmarks/{name}/test.jsonl"
    path = next((folder / file for folder in Path(__file__).resolve().parents if (folder / file).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"The real data is not here: no {file} beside the project.")
    rows = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(row)["answer"].rpartition("####")[2].strip() for row in rows]


if __name__ == "__main__":
    print(json.dumps(measure("--quick" in sys.argv), indent=2))
