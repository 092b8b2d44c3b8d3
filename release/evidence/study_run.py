"""One run of a study: one arm, one seed. Each iteration is a row, written at once.

`release.evidence.study` starts it in a process of its own: STUDY.yaml ARM SEED OUTPUT.
"""

from __future__ import annotations

import importlib
import math
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from release.evidence.study_file import Arm, Study, read_study
from release.evidence.study_rows import LEARNER_METRICS, ROLLOUT_METRICS, append_row, fork_rate, read_run, run_path
from rllib_arpo.core.results import number_at
from rllib_arpo.tracking.machine import commit, git_says, machine, versions

REPOSITORY = Path(__file__).resolve().parents[2]


def run(study: Study, arm: Arm, seed: int, output: Path) -> None:
    """Trains, evaluates before the first and after every `arm.evaluate_every`-th iteration, and writes the rows.

    Rows that a killed run of this arm and seed has left are deleted first.
    """
    arguments = arguments_of(study, arm, seed, output)
    algorithm = make_algorithm(study.recipe, [*arguments, "--seed", str(seed)])
    path = run_path(output, arm.name, seed)
    path.unlink(missing_ok=True)
    own = {"study": study.name, "arm": arm.name, "seed": seed, "last_iteration": arm.iterations}
    own |= provenance(study, arm, arguments)
    totals: dict[str, Any] = {"tool_calls": 0, "generated_tokens": 0, "computed_tokens": 0}
    totals |= {"seconds": 0.0, "cpu_seconds": 0.0}
    for iteration in range(arm.iterations + 1):
        figures = _train(algorithm, totals) if iteration else {}
        if iteration % arm.evaluate_every == 0:
            figures["accuracy"] = float(algorithm.evaluate()["env_runners"]["accuracy"])
        append_row(path, own | {"iteration": iteration} | totals | figures)
    algorithm.stop()


def arguments_of(study: Study, arm: Arm, seed: int, output: Path) -> list[str]:
    """Of the recipe, with the fork rate of the run in `output` whose rate this one has."""
    source = arm.fork_rate_of
    rate = None if source is None else fork_rate(read_run(run_path(output, source, seed)))
    return study.all_arguments(arm, rate)


def make_algorithm(recipe_name: str, arguments: Sequence[str]) -> Any:
    """The recipe's algorithm, which is evaluated when it is asked for that.

    Args:
        recipe_name: a module with `parser`, `make_model(args)` and `make_config(model, args)`.
    """
    recipe = importlib.import_module(recipe_name)
    args = recipe.parser.parse_args(list(arguments))
    return recipe.make_config(recipe.make_model(args), args).evaluation(evaluation_interval=None).build_algo()


def _train(algorithm: Any, totals: dict[str, Any]) -> dict[str, Any]:
    """One iteration: adds to the totals, and returns the figures of the iteration alone."""
    begin, cpu_begin = time.perf_counter(), time.process_time()
    result = algorithm.train()
    totals["seconds"] += time.perf_counter() - begin
    # Those of engines in processes of their own are not known here.
    alone = algorithm.config.num_env_runners == 0
    totals["cpu_seconds"] = totals["cpu_seconds"] + time.process_time() - cpu_begin if alone else None
    rollout = result["env_runners"]
    learner = result.get("learners", {}).get("default_policy", {})
    totals["tool_calls"] += int(rollout["tool_calls_executed"])
    totals["generated_tokens"] += int(rollout["generated_tokens"])
    totals["computed_tokens"] += int(learner.get("tokens_computed", 0))
    return {
        **{name: find(rollout, path) for name, path in ROLLOUT_METRICS.items()},
        **{name: find(learner, path) for name, path in LEARNER_METRICS.items()},
    }


def find(result: Mapping[str, Any], path: Sequence[str]) -> float | None:
    """The number at `path`; RLlib reports NaN for what an earlier iteration had and this one has not."""
    value = number_at(result, *path)
    return None if value is None or math.isinf(value) else value


def provenance(study: Study, arm: Arm, arguments: Sequence[str]) -> dict[str, Any]:
    """A row's facts of how and where it was made; `tree` are git's hashes of the package and of the environments."""
    here = machine()
    return {
        "arguments": shlex.join(arguments),
        "settings_hash": study.settings_hash(arm),
        "fork_rate_of": arm.fork_rate_of,
        "package_version": package_version(),
        "commit": commit() or "none",
        "tree": (git_says(REPOSITORY, "rev-parse", "HEAD:rllib_arpo", "HEAD:envs") or "none").replace("\n", " "),
        "machine": f"{here['cpu']}, {here['cores']} cores",
    }


def package_version() -> str:
    return versions().get("rllib-arpo", "not installed")


if __name__ == "__main__":
    file, name, number, folder = sys.argv[1:]
    asked = read_study(Path(file))
    run(asked, asked.arms[name], int(number), Path(folder))
