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
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError, model_validator

FOLDER = Path(__file__).resolve().parent / "studies"


def _words(line: Any) -> Any:
    return shlex.split(line) if isinstance(line, str) else line


class _Runs(BaseModel):
    """The keys that a study has for all arms, and an arm for itself."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    arguments: Annotated[list[str], BeforeValidator(_words)]
    iterations: PositiveInt
    evaluate_every: PositiveInt
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 32)]], Field(min_length=1)]


class Arm(_Runs):
    """One way to train.

    Attributes:
        name: begins the names of the files with its rows and its logs.
        arguments: of the recipe, beside the study's.
        iterations: updates of a run.
        evaluate_every: updates between two evaluations.
        fork_rate_of: the arm whose fork rate is this one's random fork probability, seed by seed.
        last_commit: the last one that runs the arm, if that is an earlier one.
    """

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
    fork_rate_of: str | None = None
    last_commit: str | None = None


class Study(_Runs):
    """The contents of a study's file; `arms` are in its order, and `path` is the file."""

    path: Path
    recipe: str
    jobs: PositiveInt
    baseline: str
    accuracies_to_reach: list[Annotated[float, Field(ge=0, le=1)]]
    calls: PositiveInt
    arms: dict[str, Arm]

    @model_validator(mode="before")
    @classmethod
    def _complete_arms(cls, said: dict[str, Any]) -> dict[str, Any]:
        """An arm that is a text alone is its arguments; what it does not say is the study's."""
        shared = {key: said[key] for key in ("iterations", "evaluate_every", "seeds") if key in said}

        def complete(name: str, arm: Any) -> Any:
            own = {"arguments": arm} if isinstance(arm, str) else arm
            return {"name": name, **shared, **own} if isinstance(own, dict) else own

        arms = said.get("arms")
        return said | {"arms": {name: complete(name, arms[name]) for name in arms}} if isinstance(arms, dict) else said

    @model_validator(mode="after")
    def _check_arms(self) -> Study:
        if self.baseline not in self.arms:
            raise ValueError(f"the baseline {self.baseline!r} is not an arm.")
        for name, arm in self.arms.items():
            if arm.iterations % arm.evaluate_every:
                raise ValueError(
                    f"arm {name}: iterations={arm.iterations} cannot be divided by evaluate_every={arm.evaluate_every}."
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
        arms = [arm] if arm.fork_rate_of is None else [arm, self.arms[arm.fork_rate_of]]
        said = [(self.all_arguments(one), one.iterations, one.evaluate_every) for one in arms]
        text = json.dumps([self.recipe, recipe_code(self.recipe), said])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


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
        raise ValueError(f"{path}: not YAML ({' '.join(str(error).split())}).") from error
    if not isinstance(said, dict):
        raise ValueError(f"{path}: must be a dict of keys.")
    try:
        return Study.model_validate(said | {"path": path})
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in first["loc"])
        raise ValueError(f"{path}: {place}{first['msg'].removeprefix('Value error, ')}") from None
