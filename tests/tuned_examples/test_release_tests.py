"""`release/release_tests.yaml` runs every tuned example with arguments that the example knows."""

import importlib
import re
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
ENTRIES = yaml.safe_load((REPOSITORY / "release" / "release_tests.yaml").read_text())
RECIPES = {entry["name"]: entry for entry in ENTRIES if "tuned_examples/" in entry["run"]["script"]}


def example(name: str):
    """(the tuned example that an entry runs, the arguments that the entry gives it)."""
    interpreter, script, *argv = RECIPES[name]["run"]["script"].split()
    assert (interpreter, Path(script).parent.name, Path(script).suffix) == ("python", "tuned_examples", ".py")
    recipe = importlib.import_module(f"tuned_examples.{Path(script).stem}")
    return recipe, recipe.parser.parse_args(argv)


def test_every_tuned_example_is_listed():
    stems = {Path(example(name)[0].__file__).stem for name in RECIPES}
    assert stems == {path.stem for path in (REPOSITORY / "tuned_examples").glob("*.py")}


@pytest.mark.parametrize("name", RECIPES)
def test_an_entry_is_called_after_its_example_whose_arguments_it_knows(name):
    recipe, args = example(name)
    assert name.startswith(Path(recipe.__file__).stem)
    assert args.as_release_test == RECIPES[name]["group"].startswith("learning")


def test_the_reasoning_models_run_on_the_gpus_that_the_recipe_says_they_need():
    recipe, _ = example("reasoning_arpo_qwen2_5_3b")
    needed = dict(re.findall(r"^ +\S+/(\S+)-Instruct +8 of (\d+) GB", recipe.__doc__, re.MULTILINE))
    clusters = {name: entry["cluster"] for name, entry in RECIPES.items() if name.startswith("reasoning_arpo")}
    assert {name: cluster["gpu_memory_gb"] for name, cluster in clusters.items()} == {
        f"reasoning_arpo_{re.sub('[.-]', '_', model).lower()}": int(gigabytes) for model, gigabytes in needed.items()
    }


@pytest.mark.parametrize("name", [name for name, entry in RECIPES.items() if entry["cluster"]["gpus"]])
def test_the_cluster_has_the_gpus_that_the_recipe_asks_for(name):
    _, args = example(name)
    asked = args.num_learners * args.num_gpus_per_learner + args.num_env_runners * args.num_gpus_per_env_runner
    assert asked == RECIPES[name]["cluster"]["gpus"]
