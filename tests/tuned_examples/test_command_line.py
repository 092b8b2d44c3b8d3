"""What a recipe's run makes of its command line, and what it refuses."""

import importlib
import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from rllib_arpo.recipes import recipe_parser, run
from rllib_arpo.recipes.checkpoints import mark_whole
from rllib_arpo.recipes.run import run_recipe, use_arguments
from tests.helpers.configs import small_config

REQUIRED = ["--model", "m", "--data", "/d.parquet", "--index", "/i"]


def test_options_that_recipes_do_not_have_are_refused(capsys):
    recipe = importlib.import_module("tuned_examples.reasoning_arpo")
    for argv, message in {
        ("--algo", "PPO"): "argument --algo: invalid choice: 'PPO' (choose from 'ARPO', 'GRPO', ",
        ("--num-samples", "2"): "unrecognized arguments: --num-samples 2",
    }.items():
        with pytest.raises(SystemExit):
            recipe.parser.parse_args([*REQUIRED, *argv])
        assert f"error: {message}" in capsys.readouterr().err


def test_options_are_used_and_those_that_are_left_out_are_the_recipes():
    config = small_config("m").evaluation(evaluation_interval=4)
    parser = recipe_parser(stop_reward=1.0, stop_iters=2)
    use_arguments(config, parser.parse_args([]), num_gpus=1)
    names = ("num_env_runners", "num_envs_per_env_runner", "evaluation_interval", "evaluation_duration")
    assert [getattr(config, name) for name in names] == [0, 2, 4, 3]
    argv = ["--num-env-runners", "1", "--num-envs-per-env-runner", "3", "--evaluation-interval", "5", "--num-learners",
            "2", "--evaluation-duration", "6", "--num-gpus-per-learner", "0.5"]  # fmt: skip
    use_arguments(config, parser.parse_args(argv), num_gpus=0)
    assert [getattr(config, name) for name in names] == [1, 3, 5, 6]
    assert (config.num_learners, config.num_gpus_per_learner) == (2, 0.5)  # Not what GPUs leave to it.


def reasoning(*argv: str):
    """(configuration, arguments) of the recipe."""
    recipe = importlib.import_module("tuned_examples.reasoning_arpo")
    args = recipe.parser.parse_args([*REQUIRED, *argv])
    return recipe.make_config(recipe.make_model(args), args), args


def test_a_run_is_resumed_if_there_is_one_and_with_its_own_arguments(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "_train", lambda *_: pytest.fail("It has started."))
    folder = tmp_path / "run"

    def refusal(*argv: str) -> str:
        with pytest.raises(ValueError) as raised:
            run_recipe(*reasoning(*argv), "recipe")
        return str(raised.value).replace(str(tmp_path), "DIR")

    output = ["--output", str(folder)]
    assert refusal("--resume") == "--resume: --output must be the folder of a run, and is None."
    assert refusal("--resume", *output) == "--resume: --output must be the folder of a run, and is DIR/run."
    assert not folder.exists()
    with run._held(folder):
        assert refusal(*output) == "--output DIR/run: another process trains here."
    begun = run._arguments(reasoning(*output, "--seed", "3", "--branching", "random")[1])
    (folder / run.ARGUMENTS_FILE).write_text(json.dumps(begun))
    assert refusal(*output) == ("--output DIR/run: there is a run already; go on with it by --resume, or name another.")
    assert refusal(*output, "--resume") == "--seed 0: the run in DIR/run was begun with 3."
    left_out = refusal(*output, "--resume", "--seed", "3")
    assert left_out == "--branching None: the run in DIR/run was begun with random."
    (folder / run.ARGUMENTS_FILE).write_text("")
    assert refusal(*output, "--resume").startswith("DIR/run/arguments.json: not JSON")
    free = {"num_learners": 4, "num_env_runners": 5, "max_failures": 6, "num_gpus_per_env_runner": 1, "stop_iters": 7}
    assert run._arguments(SimpleNamespace(**free, hf_token="abc", model="s3://me:abc@b")) == {
        "hf_token": "*** 62d9",
        "model": "s3://***@b dee2",
    }


@pytest.mark.parametrize(
    ("begun", "end"), [(True, "the same command with --resume goes on"), (False, "there is no checkpoint")]
)
@pytest.mark.usefixtures("unknown_cluster")
def test_an_interrupted_run_is_not_a_finished_one(monkeypatch, tmp_path, model_folder, begun, end):
    """Tune returns as usual after Ctrl-C where it handles that."""

    def interrupted(*_):
        if begun:
            (tmp_path / "run" / "trial" / "checkpoint_000000").mkdir(parents=True)
            mark_whole(tmp_path / "run" / "trial" / "checkpoint_000000", 1)
        return [result]

    result = SimpleNamespace(error=None, metrics={"done": False, "training_iteration": 3})
    monkeypatch.setattr(run, "ray_of_run", lambda _: nullcontext())
    monkeypatch.setattr(run.ray, "cluster_resources", dict)
    monkeypatch.setattr(run, "_train", interrupted)
    config = small_config(model_folder)
    args = reasoning("--output", str(tmp_path / "run"), "--num-gpus-per-learner", "0")[1]
    with pytest.raises(KeyboardInterrupt, match=rf"^The run was interrupted; {end}\.$"):
        run_recipe(config, args, "recipe")
