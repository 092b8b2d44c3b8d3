"""The command line of the recipes for GPUs: tools, helping models, and what is refused."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace

import pytest

from rllib_arpo.recipes import gpu_run
from rllib_arpo.recipes.gpu_run import run_gpu_recipe

REQUIRED = ["--model", "m", "--data", "/d.parquet", "--index", "/i"]
JUDGE = ["--judge-url", "http://127.0.0.1:9/v1", "--judge-model", "large"]
READER = ["--reader-url", "http://127.0.0.1:8/v1", "--reader-model", "small", "--reader-cache", "/pages.sqlite"]


def env_config(name: str, *argv: str) -> dict:
    recipe = importlib.import_module(f"tuned_examples.{name}")
    return recipe.make_config(recipe.parser.parse_args([*REQUIRED, *argv])).env_config


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], {}),
        (["--python-backend", "local"], {}),
        (["--python-backend", "unsafe"], {"unsafe": True}),
        (["--python-backend", "e2b"], {"backend": "e2b"}),
        (
            ["--python-backend", "sandbox_fusion", "--python-url", "http://10.0.0.5:8080"],
            {"backend": "sandbox_fusion", "backend_options": {"url": "http://10.0.0.5:8080"}},
        ),
    ],
)
@pytest.mark.parametrize("name", ["reasoning_arpo", "deepsearch_qwen3_8b_arpo"])
def test_the_python_tool_has_the_back_end_of_the_command_line(name, argv, expected):
    assert env_config(name, *argv)["tools"]["python"] == expected


def test_deep_search_has_a_judge_and_a_reader_of_pages():
    plain = env_config("deepsearch_qwen3_8b_arpo")
    assert plain["tools"]["browse"] == {}
    assert "judge" not in plain
    helped = env_config("deepsearch_qwen3_8b_arpo", *JUDGE, *READER)
    assert helped == {
        **plain,
        "qa_metric": "judge",
        "judge": {"base_url": "http://127.0.0.1:9/v1", "model": "large"},
        "tools": {
            **plain["tools"],
            "browse": {
                "summary_model": {
                    "base_url": "http://127.0.0.1:8/v1",
                    "model": "small",
                    "cache_path": "/pages.sqlite",
                }
            },
        },
    }


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--judge-model", "large"], "--judge-model: needs --judge-url and --judge-model."),
        (["--reader-cache", "/c"], "--reader-cache: needs --reader-url and --reader-model."),
        (["--python-url", "http://h"], "--python-url http://h: belongs to --python-backend sandbox_fusion."),
        (
            ["--num-gpus-per-env-runner", "1.5"],
            "--num-gpus-per-env-runner 1.5: must be a whole number, or less than 1.",
        ),
        (
            ["--num-env-runners", "0"],
            "--num-env-runners 0: the engine would be in the learner's process; to share its GPU say "
            "--num-env-runners 1 and fractions of --num-gpus-per-learner and --num-gpus-per-env-runner.",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(argv, message):
    with pytest.raises(ValueError) as raised:
        env_config("deepsearch_qwen3_8b_arpo", *argv)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--algo", "PPO"],
            "error: argument --algo: invalid choice: 'PPO' (choose from 'ARPO', 'GRPO', 'DAPO', 'ReinforcePlusPlus', "
            "'AEPO', 'TreeGRPO')",
        ),
        (["--no-tune"], "error: unrecognized arguments: --no-tune"),
        (["--num-samples", "2"], "error: unrecognized arguments: --num-samples 2"),
        (["--stop-timesteps", "9"], "error: unrecognized arguments: --stop-timesteps 9"),
        (["--evaluation-interval", "3"], "error: unrecognized arguments: --evaluation-interval 3"),
        (["--checkpoint-freq", "0"], "error: argument --checkpoint-freq: 0: must be at least 1"),
        (["--judge-model", "large"], "error: unrecognized arguments: --judge-model large"),
    ],
)
def test_options_of_rllib_that_mean_nothing_here_are_refused(argv, message, capsys):
    recipe = importlib.import_module("tuned_examples.reasoning_arpo")
    with pytest.raises(SystemExit):
        recipe.parser.parse_args([*REQUIRED, *argv])
    assert capsys.readouterr().err.strip().endswith(message)


def refusal(monkeypatch, *argv: str, begun: list[str] | None = None, tmp_path) -> str:
    """What is said instead of starting; `begun`: further arguments of the run that is in the folder already."""
    recipe = importlib.import_module("tuned_examples.reasoning_arpo")
    output = ["--output", str(tmp_path / "run")]
    if begun is not None:
        (tmp_path / "run").mkdir()
        arguments = gpu_run._arguments(recipe.parser.parse_args([*REQUIRED, *output, *begun]))
        (tmp_path / "run" / gpu_run.ARGUMENTS_FILE).write_text(json.dumps(arguments))
    monkeypatch.setattr(gpu_run, "_train", lambda *_: pytest.fail("It has started."))
    args = recipe.parser.parse_args([*REQUIRED, *output, *argv])
    with pytest.raises(ValueError) as raised:
        run_gpu_recipe(recipe.make_config(args), args, "recipe")
    return str(raised.value).replace(str(tmp_path), "DIR")


def test_a_run_is_resumed_if_there_is_one_and_with_its_own_arguments(monkeypatch, tmp_path):
    assert refusal(monkeypatch, "--resume", tmp_path=tmp_path) == "--resume: there is no run in DIR/run."
    assert refusal(monkeypatch, tmp_path=tmp_path, begun=["--seed", "3"]) == (
        "--output DIR/run: there is a run already; go on with it by --resume, or name another."
    )
    assert refusal(monkeypatch, "--resume", tmp_path=tmp_path) == "--seed 0: the run in DIR/run was begun with 3."


def test_an_interrupted_run_saves_no_model(monkeypatch, tmp_path):
    """Tune returns as usual after Ctrl-C."""
    recipe = importlib.import_module("tuned_examples.reasoning_arpo")
    args = recipe.parser.parse_args([*REQUIRED, "--output", str(tmp_path)])
    interrupted = SimpleNamespace(error=None, metrics={"done": False, "training_iteration": 3})
    monkeypatch.setattr(gpu_run, "_train", lambda *_: interrupted)
    with pytest.raises(RuntimeError, match=r"^The run was interrupted; the same command with --resume goes on\.$"):
        run_gpu_recipe(recipe.make_config(args), args, "recipe")


@pytest.mark.parametrize(("reward", "passed"), [(0.6, True), (0.59, False), (float("nan"), False)])
def test_a_release_test_writes_whether_the_reward_was_reached(reward, passed, monkeypatch, tmp_path):
    monkeypatch.setenv("TEST_OUTPUT_JSON", str(tmp_path / "figures.json"))
    recipe = importlib.import_module("tuned_examples.reasoning_arpo")
    args = recipe.parser.parse_args([*REQUIRED, "--as-release-test"])
    result = SimpleNamespace(metrics={"env_runners": {"episode_return_mean": reward}, "time_total_s": 5.0})
    gpu_run._report_test(result, args)
    figures = json.loads((tmp_path / "figures.json").read_text())
    expected = {"passed": [passed], "not_passed": [not passed], "target_value": 0.6, "time_taken": 5.0}
    assert {key: figures[key] for key in expected} == expected
    args = recipe.parser.parse_args([*REQUIRED, "--as-test"])
    if passed:
        gpu_run._report_test(result, args)
    else:
        with pytest.raises(
            RuntimeError, match=r"^--as-test: env_runners/episode_return_mean is .*, and should be 0\.6"
        ):
            gpu_run._report_test(result, args)
