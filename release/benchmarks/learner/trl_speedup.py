"""Our forward and backward against those of TRL's GRPO loss, which runs in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sysconfig
import venv
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from release.benchmarks.common.bench import (
    SMALL_LLAMA,
    SMOLLM2,
    Bench,
    BenchmarkError,
    alternate,
    median,
    num_cores,
    rounded,
)
from release.benchmarks.learner.rollouts import Rollouts, make_rollouts
from release.benchmarks.learner.sides import MAX_TOKENS_PER_PASS, Sides, take_gradients
from release.benchmarks.learner.tree_speedup import DTYPE, WARM_UP_TOKENS, relative_error, rollouts_for, seconds_of
from release.benchmarks.learner.tree_workload import make_question

RATIO = 2.5
KEY = f"speedup_trl_{RATIO}"
REQUIREMENTS = ("trl==1.16.0", "datasets==5.2.0")
#: If the gradients differ by more than this, the two sides did not compute the same loss.
MAX_GRADIENT_ERROR = 1e-3


def speedup(bench: Bench) -> dict[str, Any]:
    """`speedup_trl_2.5`: seconds of `GRPOTrainer._compute_loss` and backward / ours, the median of the pairs.

    TRL gets the same trajectories as a padded batch with a tool mask, the same advantages, and loss_type="dapo" with
    beta=0, which is our loss; the gradients are compared. It runs with its defaults (its own tiled LM head computes
    log-probs and entropies of all positions), except for gradient checkpointing and bf16, which we do not use either.
    The time includes its metrics, as it includes ours.
    """
    name = bench.pick(full=SMOLLM2, quick=SMOLLM2, tiny=SMALL_LLAMA)
    repeats = bench.pick(full=5, quick=2, tiny=1)
    folder, rollouts = bench.model(name), rollouts_for(bench, RATIO)
    side = Sides(folder).ours(rollouts)
    with Worker(bench.scratch / "trl", folder) as worker:
        for data in (make_rollouts([make_question(RATIO, WARM_UP_TOKENS)]), rollouts):
            worker.load(data)
            worker.seconds()
        error = relative_error(_gradients(side), worker.gradients())
        if error > MAX_GRADIENT_ERROR:
            raise BenchmarkError(f"TRL's gradient differs by {error:.2g} from ours: this is not the same loss.")
        sides = {"ours": lambda _: seconds_of(side), "trl": lambda _: worker.seconds()}
        seconds = alternate(sides, repeats, warm_up=False)
        versions = worker.versions
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["trl"], strict=True)]
    detail = {
        "sides": ["ours_s", "trl_s"],
        "ours_s": rounded(seconds["ours"]),
        "trl_s": rounded(seconds["trl"]),
        "ratios": rounded(ratios),
        "gradient_rel_error": error,
        **rollouts.sizes(),
        "trl_side": "GRPOTrainer._compute_loss and backward, gradient_checkpointing=False, bf16=False",
        "trl_versions": versions,
        "model": bench.model_name(name),
        "dtype": DTYPE,
        "cores": num_cores(),
        "threads": torch.get_num_threads(),
        "repeats": repeats,
    }
    return {KEY: median(ratios), f"{KEY}_detail": detail}


def _gradients(side) -> dict[str, torch.Tensor]:
    seconds_of(side)
    side()
    return take_gradients(side.model)


def make_environment(folder: Path) -> Path:
    """Makes a virtual environment that sees the packages of the running one and has TRL; returns its Python."""
    venv.EnvBuilder(with_pip=True, symlinks=True).create(folder)
    python = folder / "bin" / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    running = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    lines = [f"import site; site.addsitedir({path!r})" for path in running]
    (Path(packages) / "running_environment.pth").write_text("\n".join(lines) + "\n")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *REQUIREMENTS]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"TRL could not be installed: {done.stderr.strip().splitlines()[-1]}")
    return python


class Worker:
    """TRL's process (`trl_worker.py`): a request is a line of JSON, and so is the answer.

    It computes only while it is asked to, so that the sides take turns.
    """

    def __init__(self, scratch: Path, model: str) -> None:
        self._scratch = scratch
        python = make_environment(scratch / "environment")
        # -P: the benchmarks' own modules must not stand in for those that TRL imports.
        command = [str(python), "-P", str(Path(__file__).with_name("trl_worker.py")), model, str(scratch)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions: dict[str, str] = self._answer()["versions"]

    def load(self, rollouts: Rollouts) -> None:
        """Makes a trainer for these rollouts."""
        file = self._scratch / "rollouts.npz"
        np.savez(file, **trl_inputs(rollouts))
        length = rollouts.num_padded // len(rollouts.paths)
        rows = max(1, MAX_TOKENS_PER_PASS // length)
        self._ask(load=str(file), rows=_divisor(len(rollouts.paths), rows))

    def seconds(self) -> float:
        """Of one forward and backward of all micro-batches."""
        return self._ask(run=True)["seconds"]

    def gradients(self) -> dict[str, torch.Tensor]:
        """Of the last run."""
        return torch.load(self._ask(save=str(self._scratch / "gradients.pt"))["saved"])

    def _ask(self, **request: Any) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError(f"TRL's process ended with status {self._process.wait()}.")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stdin.close()
        self._process.wait()


def _divisor(total: int, at_most: int) -> int:
    """The largest divisor of `total` up to `at_most`: TRL's micro-batches have equal sizes."""
    return max(n for n in range(1, min(total, at_most) + 1) if total % n == 0)


def trl_inputs(rollouts: Rollouts) -> dict[str, np.ndarray]:
    """The arrays that `GRPOTrainer._compute_loss` reads: prompts padded on the left, completions on the right.

    A completion is everything after the prompt; `tool_mask` is 0 on its tool responses.
    """
    starts = [int(path.packed.loss_mask.argmax()) for path in rollouts.paths]
    rows, width = len(starts), max(starts)
    longest = max(path.packed.num_tokens - start for path, start in zip(rollouts.paths, starts, strict=True))
    prompt_ids, prompt_mask = np.zeros((2, rows, width), np.int64)
    completion_ids, completion_mask, tool_mask = np.zeros((3, rows, longest), np.int64)
    for row, (path, start) in enumerate(zip(rollouts.paths, starts, strict=True)):
        packed, n = path.packed, path.packed.num_tokens - start
        prompt_ids[row, width - start :], prompt_mask[row, width - start :] = packed.token_ids[:start], 1
        completion_ids[row, :n], completion_mask[row, :n] = packed.token_ids[start:], 1
        tool_mask[row, :n] = packed.loss_mask[start:]
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": np.array([path.advantage for path in rollouts.paths], np.float32),
    }
