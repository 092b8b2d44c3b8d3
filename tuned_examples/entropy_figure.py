"""The figure that a recipe draws before it trains: where the model is unsure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rllib_arpo.rollout.settings import RolloutSettings
from rllib_arpo.terminal import about, activity

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: Settings of a configuration that are options of `rllib-arpo entropy` under the same names.
ENTROPY_SETTINGS = (
    "dtype", "temperature", "max_context_tokens", "max_response_tokens", "max_turn_tokens", "max_tool_calls",
    "entropy_estimator", "entropy_normalization", "branch_base_probability", "branch_entropy_weight",
)  # fmt: skip


def draw_entropy(config: ARPOConfig, task: str, folder: str, num_questions: int = 32) -> None:
    """Draws where the model is unsure before it is trained (`rllib-arpo entropy`); the figure goes into `folder`.

    Args:
        task: the command asks the first `num_questions` of its held-out questions.

    Raises:
        RuntimeError: the command failed.
    """
    # Nothing of the run is known yet.
    rule = RolloutSettings.from_config(config, explore=True).branching
    arguments = {
        "model": config.model_name_or_path, "tasks": task, "limit": num_questions, "output": folder,
        "window": config.entropy_window, "branch_width": rule.branch_width, "branch_threshold": rule.branch_threshold,
        **{name: getattr(config, name) for name in ENTROPY_SETTINGS},
    }  # fmt: skip
    # None means no limit, the command's default.
    given = {f"--{name.replace('_', '-')}": str(value) for name, value in arguments.items() if value is not None}
    argv = [part for option in given.items() for part in option]
    line = about("entropy", f"drawing where the model is unsure: {Path(folder, f'entropy-{task}.png')}, a minute")
    with activity(line, "entropy"):
        # In a separate process, which returns the engine's memory when it ends.
        command = [sys.executable, "-m", "rllib_arpo", "entropy", *argv]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise RuntimeError(f"The entropy figure could not be drawn.\n{done.stderr}".rstrip())
