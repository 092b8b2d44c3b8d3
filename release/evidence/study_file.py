"""Reads the file of a study: a task, the length of its runs, seeds, and the arms to compare.

    recipe: tuned_examples.trails_small_arpo    # a module with `parser`, `make_model(args)`, `make_config(model, args)`
    arguments: --lr 4e-4                        # the recipe's arguments for every arm
    iterations: 24
    evaluate_every: 3
    seeds: [0, 1, 2]
    jobs: 2                                     # runs at a time
    baseline: grpo                              # the other arms are compared with this one
    accuracies_to_reach: [0.7, 0.8]
    calls: 9000                                 # runs are compared up to this number of calls
    arms:
      grpo: --algo GRPO
      threshold: ""
      random: {arguments: --branching random, fork_rate_of: threshold}
      lean: {arguments: --algo GRPO --num-rollouts 8, iterations: 48, evaluate_every: 6, seeds: [0, 1]}

Instead of `seeds` a file may name several start models with the seeds that begin from each, at least five for
intervals:

    start_models:
      - {arguments: --cold-start-seed 0, seeds: [0, 1]}
      - {arguments: --start-model DIR, seeds: [2, 3], sha256: 5d1e0c77a4b2}    # refused if DIR has other weights

`fork_rate_of` adds `--random-fork-probability` with the fork rate that the other arm had with the same seed. If options
of an arm have since been removed, `last_commit` is the last commit that runs it; the tables show its rows, but it
cannot run.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    model_validator,
)

FOLDER = Path(__file__).resolve().parent / "studies"


def _words(line: Any) -> Any:
    return shlex.split(line) if isinstance(line, str) else line


def _unlike(seeds: list[int]) -> list[int]:
    if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise ValueError(f"the seed {twice[0]} appears twice.")
    return seeds


Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 32)]], Field(min_length=1), AfterValidator(_unlike)]


class _Runs(BaseModel):
    """The keys that a study sets for all arms, and an arm for itself."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    arguments: Annotated[list[str], BeforeValidator(_words)]
    iterations: PositiveInt
    evaluate_every: PositiveInt
    seeds: Seeds


class Arm(_Runs):
    """An arm of a study.

    Attributes:
        name: the first part of the names of its files.
        arguments: arguments of the recipe in addition to the study's.
        iterations: updates of a run.
        evaluate_every: updates between two evaluations.
        fork_rate_of: another arm, whose fork rate becomes this arm's random fork probability, seed by seed.
        last_commit: the last commit that runs the arm, if newer ones do not.
    """

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
    fork_rate_of: str | None = None
    last_commit: str | None = None


class StartModel(BaseModel):
    """A model from which runs begin.

    Attributes:
        arguments: with which the recipe makes or finds it.
        seeds: of the runs that begin from it.
        sha256: what `weights_hash` gives, if only these weights will do. Other machines make other weights from the
            same arguments.
    """

    model_config = _Runs.model_config

    arguments: Annotated[list[str], BeforeValidator(_words)] = []
    seeds: Seeds
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{12}$")] | None = None


class Study(_Runs):
    """The contents of a study's file `path`, with its arms in order."""

    path: Path
    recipe: str
    start_models: list[StartModel] = []
    jobs: PositiveInt
    baseline: str
    accuracies_to_reach: list[Annotated[float, Field(ge=0, le=1)]]
    calls: PositiveInt
    arms: dict[str, Arm]

    @model_validator(mode="before")
    @classmethod
    def _complete_arms(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Completes each arm with the study's keys. A text alone is an arm's arguments."""
        starts = given.get("start_models")
        if "seeds" not in given and isinstance(starts, list) and starts:
            of_each = [start.get("seeds") if isinstance(start, dict) else None for start in starts]
            # Otherwise the error is about the start model, not about `seeds`.
            whole = all(isinstance(seeds, list) for seeds in of_each)
            given = given | {"seeds": [*dict.fromkeys(chain(*of_each))] if whole else [0]}
        shared = {key: given[key] for key in ("iterations", "evaluate_every", "seeds") if key in given}

        def complete(name: str, arm: Any) -> Any:
            own = {"arguments": arm} if isinstance(arm, str) else arm
            if isinstance(own, dict) and "name" in own:
                raise ValueError(f"arm {name}: its name is its key, so it takes no `name`.")
            return {**shared, **own, "name": name} if isinstance(own, dict) else own

        arms = given.get("arms")
        completed = {name: complete(name, arms[name]) for name in arms} if isinstance(arms, dict) else arms
        return given if arms is None else given | {"arms": completed}

    @model_validator(mode="after")
    def _check_arms(self) -> Study:
        if self.baseline not in self.arms:
            raise ValueError(f"the baseline {self.baseline!r} is not an arm.")
        nested = [seed for start in self.start_models for seed in start.seeds]
        if twice := [seed for seed in nested if nested.count(seed) > 1]:
            raise ValueError(f"start_models: two of them have the seed {twice[0]}.")
        for name, arm in self.arms.items():
            if nested and (missing := sorted(set(arm.seeds) - set(nested))):
                raise ValueError(f"arm {name}: none of the start_models has its seed {missing[0]}.")
            if arm.iterations % arm.evaluate_every:
                raise ValueError(
                    f"arm {name}: iterations={arm.iterations} is not a multiple of evaluate_every={arm.evaluate_every}."
                )
            if arm.fork_rate_of is None:
                continue
            other = self.arms.get(arm.fork_rate_of)
            if other is None or other.fork_rate_of is not None:
                raise ValueError(f"arm {name}: fork_rate_of={arm.fork_rate_of!r} is not an arm with its own fork rule.")
            if missing := sorted(set(arm.seeds) - set(other.seeds)):
                raise ValueError(f"arm {name}: fork_rate_of={arm.fork_rate_of!r} has no run with seed {missing[0]}.")
        return self

    @property
    def name(self) -> str:
        return self.path.stem.replace("_", "-")

    def arms_named(self, names: Sequence[str] | None) -> list[Arm]:
        """The arms with these names, in the file's order; None: all arms.

        Raises:
            ValueError: an arm does not exist.
        """
        for name in names or ():
            if name not in self.arms:
                raise ValueError(f"{self.path}: has no arm {name!r}; there are {', '.join(self.arms)}.")
        return [arm for arm in self.arms.values() if names is None or arm.name in names]

    def arms_to_run(self, names: Sequence[str] | None) -> list[Arm]:
        """Like `arms_named`.

        Raises:
            ValueError: an arm does not exist, or uses options that were removed.
        """
        arms = self.arms_named(names)
        if gone := [arm for arm in arms if arm.last_commit is not None]:
            listed = ", ".join(arm.name for arm in gone)
            raise ValueError(
                f"{self.path}: {listed} cannot run, since options were removed after commit {gone[0].last_commit}; "
                "name other arms."
            )
        return arms

    def check_seeds(self, seeds: Sequence[int] | None, arms: Sequence[Arm]) -> None:
        """Raises ValueError if none of these arms plans one of the seeds."""
        if unknown := sorted(set(seeds or ()).difference(*(arm.seeds for arm in arms))):
            raise ValueError(f"{self.path}: plans no run with seed {unknown[0]}.")

    def start_model(self, seed: int) -> StartModel:
        """The start model of a seed; if the file names none, the one that the recipe makes by itself.

        Raises:
            ValueError: the file names start models, and none has the seed.
        """
        if not self.start_models:
            return StartModel(seeds=[seed])
        for start in self.start_models:
            if seed in start.seeds:
                return start
        raise ValueError(f"{self.path}: none of the start_models has the seed {seed}.")

    def all_arguments(self, arm: Arm, fork_rate: float | None = None) -> list[str]:
        """The arguments of the recipe, without the seed and without those of its start model."""
        own = [] if fork_rate is None else ["--random-fork-probability", f"{fork_rate:.4f}"]
        return [*self.arguments, *arm.arguments, *own]

    def settings_hash(self, arm: Arm) -> str:
        """A hash of everything that decides an arm's runs except the seed: the study's file and the recipe's code.

        Rows have the package's version in another column.
        """
        arms = [arm] if arm.fork_rate_of is None else [arm, self.arms[arm.fork_rate_of]]
        settings = [(self.all_arguments(one), one.iterations, one.evaluate_every) for one in arms]
        text = json.dumps([self.recipe, recipe_code(self.recipe), settings])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def recipe_code(recipe: str) -> str:
    """The code of a recipe, a module or a file, without comments and the module's docstring.

    Raises:
        ValueError: it does not exist.
    """
    origin = recipe
    if not recipe.endswith(".py"):
        try:
            spec = importlib.util.find_spec(recipe)
        except (ImportError, ValueError):
            spec = None
        origin = str(spec and spec.origin)
    if not origin.endswith(".py") or not Path(origin).is_file():
        raise ValueError(f"recipe: there is no module {recipe!r} in the current folder or on PYTHONPATH.")
    module = ast.parse(Path(origin).read_text())
    module.body = module.body[1:] if ast.get_docstring(module) else module.body
    return ast.unparse(module)


def study_of(name: str) -> Path:
    """The file of a study in this repository, by the name in its rows."""
    return FOLDER / f"{name.replace('-', '_')}.yaml"


class _Loader(yaml.SafeLoader):
    """Refuses a mapping with the same key twice; YAML would keep the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if twice := [key for key, _ in node.value if keys.count(key.value) > 1]:
            raise yaml.MarkedYAMLError(
                problem=f"the key {twice[0].value!r} appears twice", problem_mark=twice[-1].start_mark
            )
        return super().construct_mapping(node, deep)


def read_study(path: Path) -> Study:
    """Reads and checks the file of a study.

    Raises:
        ValueError: a key is missing or unknown, breaks its rule, or does not fit to another key.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such study; name its file before --table.")
    try:
        given = yaml.load(path.read_text(), _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that does not exist.
        raise ValueError(f"{path}: is not YAML ({' '.join(str(error).split())}).") from error
    if not isinstance(given, dict):
        raise ValueError(f"{path}: must be a dict of keys.")
    try:
        return Study.model_validate(given | {"path": path})
    except ValidationError as error:
        first = error.errors()[0]
        keys = "".join(f"{part}: " for part in first["loc"])
        raise ValueError(f"{path}: {keys}{first['msg'].removeprefix('Value error, ')}") from None
