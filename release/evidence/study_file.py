"""The file of a study: a task, how long it is trained, seeds, and the arms that are compared.

    recipe: tuned_examples.trails_small_arpo    # a module with `parser`, `make_model(args)`, `make_config(model, args)`
    arguments: --lr 4e-4                        # of the recipe, for every arm
    iterations: 24
    evaluate_every: 3
    seeds: [0, 1, 2]
    jobs: 2                                     # runs at a time
    baseline: grpo                              # the arm that the others are compared with
    accuracies_to_reach: [0.7, 0.8]
    calls: 9000                                 # up to which runs are compared at equal calls
    arms:
      grpo: --algo GRPO
      threshold: ""
      random: {arguments: --branching random, fork_rate_of: threshold}
      lean: {arguments: --algo GRPO --num-rollouts 8, iterations: 48, evaluate_every: 6, seeds: [0, 1]}

`fork_rate_of` adds `--random-fork-probability`: the fork rate that the other arm had with the same seed. An arm whose
options were removed since has `last_commit`, the last one that runs it: its rows are shown, and it is not run.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.options.rules import PROBABILITY, Rule, a_dict, at_least

FOLDER = Path(__file__).resolve().parent / "studies"
_TEXT = Rule("a text", lambda value: isinstance(value, str))


def _is_command_line(value: Any) -> bool:
    try:
        return isinstance(value, str) and shlex.split(value) is not None
    except ValueError:
        return False


def _are_seeds(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(at_least(0).test(seed) and seed < 1 << 32 for seed in value)


def _are_accuracies(value: Any) -> bool:
    return isinstance(value, list) and all(map(PROBABILITY.test, value))


SEEDS = Rule("a list of integers from 0 to 2**32 - 1, not empty", _are_seeds)
#: Keys of a study and of an arm, with the rules of their values.
ARM_KEYS = {
    "arguments": Rule("a text of arguments, with an end of each quotation", _is_command_line),
    "iterations": at_least(1),
    "evaluate_every": at_least(1),
    "seeds": SEEDS,
    "fork_rate_of": _TEXT,
    "last_commit": _TEXT,
}
KEYS = {name: ARM_KEYS[name] for name in ("arguments", "iterations", "evaluate_every", "seeds")} | {
    "recipe": _TEXT,
    "jobs": at_least(1),
    "baseline": _TEXT,
    "accuracies_to_reach": Rule("a list of numbers in [0, 1]", _are_accuracies),
    "calls": at_least(1),
    "arms": a_dict("a dict of arms by name"),
}


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train.

    Attributes:
        arguments: of the recipe, beside the study's.
        iterations: updates of a run.
        evaluate_every: updates between two evaluations.
        fork_rate_of: the arm whose fork rate is this one's random fork probability, seed by seed.
        last_commit: the last one that runs the arm, if that is an earlier one.
    """

    name: str
    arguments: tuple[str, ...]
    seeds: tuple[int, ...]
    iterations: int
    evaluate_every: int
    fork_rate_of: str | None = None
    last_commit: str | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """The contents of a study's file; `arms` are in its order, and `path` is the file."""

    path: Path
    recipe: str
    arguments: tuple[str, ...]
    baseline: str
    accuracies_to_reach: tuple[float, ...]
    calls: int
    jobs: int
    arms: Mapping[str, Arm]

    @property
    def name(self) -> str:
        return self.path.stem.replace("_", "-")

    def arms_named(self, names: Sequence[str] | None) -> list[Arm]:
        """The arms of these names, in the file's order; None: all.

        Raises:
            ValueError: there is no such arm.
        """
        for name in names or ():
            if name not in self.arms:
                raise ValueError(f"{self.path}: has no arm {name!r}; there are {', '.join(self.arms)}.")
        return [arm for arm in self.arms.values() if names is None or arm.name in names]

    def arms_to_run(self, names: Sequence[str] | None) -> list[Arm]:
        """As `arms_named`.

        Raises:
            ValueError: there is no such arm, or it uses options that were removed.
        """
        arms = self.arms_named(names)
        if gone := [arm for arm in arms if arm.last_commit is not None]:
            told = ", ".join(arm.name for arm in gone)
            raise ValueError(
                f"{self.path}: {gone[0].last_commit} is the last commit that runs {told}: options were removed; "
                "name other arms."
            )
        return arms

    def all_arguments(self, arm: Arm, fork_rate: float | None = None) -> list[str]:
        """The arguments of the recipe, without the seed."""
        own = [] if fork_rate is None else ["--random-fork-probability", f"{fork_rate:.4f}"]
        return [*self.arguments, *arm.arguments, *own]

    def settings_hash(self, arm: Arm) -> str:
        """A hash over all that decides an arm's runs except the seed: the study's file and the recipe's code.

        Rows state the package's version separately.
        """
        said = self._said(arm) | {"code": recipe_code(self.recipe)}
        if arm.fork_rate_of is not None:
            said["fork_rate_of"] = self._said(self.arms[arm.fork_rate_of])
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]

    def _said(self, arm: Arm) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "arguments": self.all_arguments(arm),
            "iterations": arm.iterations,
            "evaluate_every": arm.evaluate_every,
        }


def recipe_code(recipe: str) -> str:
    """The code of a recipe's module, without comments and the module's documentation.

    Raises:
        ValueError: there is no such module.
    """
    try:
        spec = importlib.util.find_spec(recipe)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not str(spec.origin).endswith(".py"):
        raise ValueError(f"recipe: there is no module {recipe!r}; the current folder and PYTHONPATH are searched.")
    module = ast.parse(Path(spec.origin).read_text())
    module.body = module.body[1:] if ast.get_docstring(module) else module.body
    return ast.unparse(module)


def study_of(name: str) -> Path:
    """The file of a study of this repository, by the name that its rows have."""
    return FOLDER / f"{name.replace('-', '_')}.yaml"


class _Loader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, of which YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if twice := [key for key, _ in node.value if keys.count(key.value) > 1]:
            raise yaml.MarkedYAMLError(
                problem=f"the key {twice[0].value!r} is there twice", problem_mark=twice[-1].start_mark
            )
        return super().construct_mapping(node, deep)


def read_study(path: Path) -> Study:
    """Reads and checks the file of a study.

    Raises:
        ValueError: a key is missing or unknown, its value breaks its rule, or it does not fit to another one.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such study; name its file before --table.")
    try:
        said = yaml.load(path.read_text(), _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that does not exist.
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f"line {mark.line + 1}: {problem}" if mark and problem else first_line(error)
        raise ValueError(f"{path}: not YAML ({line}).") from error
    _check_keys(f"{path}", said, set(KEYS), KEYS)
    study = Study(
        path=path,
        recipe=said["recipe"],
        arguments=tuple(shlex.split(said["arguments"])),
        baseline=said["baseline"],
        accuracies_to_reach=tuple(said["accuracies_to_reach"]),
        calls=said["calls"],
        jobs=said["jobs"],
        arms={name: _arm(path, name, of_arm, said) for name, of_arm in said["arms"].items()},
    )
    if study.baseline not in study.arms:
        raise ValueError(f"{path}: the baseline {study.baseline!r} is not an arm.")
    for arm in study.arms.values():
        _check_arm(study, arm)
    return study


def _arm(path: Path, name: str, said: str | Mapping[str, Any], study: Mapping[str, Any]) -> Arm:
    """An arm that is a string alone is its arguments; its rows and its log are files with its name."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        allowed = "letters, digits, '_', and after the first also '-' and '.'"
        raise ValueError(f"{path}, arm {name!r}: the name may have {allowed}.")
    of_arm = {"arguments": said} if isinstance(said, str) else said
    _check_keys(f"{path}, arm {name}", of_arm, {"arguments"}, ARM_KEYS)
    return Arm(
        name=name,
        arguments=tuple(shlex.split(of_arm["arguments"])),
        seeds=tuple(of_arm.get("seeds", study["seeds"])),
        iterations=of_arm.get("iterations", study["iterations"]),
        evaluate_every=of_arm.get("evaluate_every", study["evaluate_every"]),
        fork_rate_of=of_arm.get("fork_rate_of"),
        last_commit=of_arm.get("last_commit"),
    )


def _check_keys(where: str, said: Any, needed: set[str], known: Mapping[str, Rule]) -> None:
    a_dict("a dict").check(where, said)
    for problem, keys in (("missing", needed - said.keys()), ("unknown", said.keys() - known.keys())):
        if keys:
            raise ValueError(f"{where}: the key {min(keys)!r} is {problem}.")
    for key, value in said.items():
        known[key].check(f"{where}: {key}", value)


def _check_arm(study: Study, arm: Arm) -> None:
    where = f"{study.path}, arm {arm.name}"
    if arm.iterations % arm.evaluate_every:
        raise ValueError(
            f"{where}: iterations={arm.iterations} cannot be divided by evaluate_every={arm.evaluate_every}."
        )
    if arm.fork_rate_of is None:
        return
    other = study.arms.get(arm.fork_rate_of)
    if other is None or other.fork_rate_of is not None:
        raise ValueError(f"{where}: fork_rate_of={arm.fork_rate_of!r} is not an arm with a fork rule of its own.")
    if missing := sorted(set(arm.seeds) - set(other.seeds)):
        raise ValueError(f"{where}: fork_rate_of={arm.fork_rate_of!r} has no run with seed {missing[0]}.")
