"""Our forward and backward against those of TRL's GRPO loss, which runs in an environment of its own.

The environment is the one of the benchmark of whole iterations: .venv-trl in the root of the repository.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from release.benchmarks.common.bench import SMOLLM2, Bench, BenchmarkError, num_cores, ratio
from release.benchmarks.learner.rollouts import Rollouts
from release.benchmarks.learner.sides import MAX_TOKENS_PER_PASS, Sides, take_gradients
from release.benchmarks.learner.tree_speedup import DTYPE, relative_error, rollouts_for, seconds_of

RATIO = 2.5
TRL_PYTHON = Path(__file__).resolve().parents[3] / ".venv-trl/bin/python"
#: If the gradients differ by more than this, the two sides did not compute the same loss.
MAX_GRADIENT_ERROR = 1e-3


def speedup(bench: Bench) -> dict[str, Any]:
    """`speedup_trl_2.5`: seconds of `GRPOTrainer._compute_loss` and backward / ours, the median of the pairs.

    TRL gets the same trajectories as a padded batch with a tool mask, the same advantages, and loss_type="dapo" with
    beta=0, which is our loss; the gradients are compared. It runs with its defaults (its own tiled LM head computes
    log-probs and entropies of all positions), except for gradient checkpointing and bf16, which we do not use either.
    The time includes its metrics, as it includes ours. Our passes come before and after TRL's process.
    """
    repeats = bench.pick(full=6, quick=2, tiny=2)
    folder, rollouts = bench.model(SMOLLM2), rollouts_for(bench, RATIO)
    side = Sides(folder).make("ours", rollouts)
    seconds_of(side)
    before = [seconds_of(side) for _ in range(repeats // 2)]
    theirs = run_trl(bench.scratch / "trl", folder, rollouts, repeats)
    seconds = {"ours_s": before + [seconds_of(side) for _ in range(repeats - len(before))], "trl_s": theirs["seconds"]}
    side()
    error = relative_error(take_gradients(side.model), torch.load(theirs["gradients"]))
    if error > MAX_GRADIENT_ERROR:
        raise BenchmarkError(f"TRL's gradient differs by {error:.2g} from ours: this is not the same loss.")
    about = {"gradient_rel_error": error, "trl_versions": theirs["versions"], "cores": num_cores(), "dtype": DTYPE}
    about |= {**rollouts.sizes(), "model": bench.model_name(SMOLLM2)}
    return ratio(f"speedup_trl_{RATIO}", "trl_s", "ours_s", seconds, **about)


def run_trl(folder: Path, model: str, rollouts: Rollouts, repeats: int) -> dict[str, Any]:
    """What `trl_worker.py` measures; it makes micro-batches of equal sizes.

    Raises:
        BenchmarkError: there is no environment with TRL, or the process failed.
    """
    if not TRL_PYTHON.exists():
        raise BenchmarkError(f"TRL's environment is missing: there is no {TRL_PYTHON}")
    folder.mkdir()
    np.savez(folder / "rollouts.npz", **trl_inputs(rollouts))
    total = len(rollouts.paths)
    at_most = max(1, MAX_TOKENS_PER_PASS * total // rollouts.num_padded)
    rows = max(n for n in range(1, min(total, at_most) + 1) if total % n == 0)
    # -P: the benchmarks' own modules must not stand in for those that TRL imports.
    command = [str(TRL_PYTHON), "-P", str(Path(__file__).with_name("trl_worker.py")), model, str(folder)]
    done = subprocess.run([*command, str(rows), str(repeats)], capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"TRL's process ended with status {done.returncode}: {done.stderr[-500:]}")
    return json.loads((folder / "result.json").read_text())


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
