"""The recipes for GPUs, built on a tiny random model of the same architecture."""

import functools
import importlib
import json
import os

import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.commands import run_command
from rllib_arpo.envs.tasks.dataset import DatasetTask
from tests.helpers.models import tiny_model
from tests.helpers.parquet import parquet, row

#: recipe -> (the architecture of its models, longest context, tool calls, tools).
RECIPES = {
    "reasoning_arpo": ("qwen2", 5632, 3, ["python", "search"]),
    "deepsearch_qwen3_8b_arpo": ("qwen3", 12000, 6, ["browse", "python", "search"]),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The command line of a recipe without its model: two questions and one document."""
    folder = tmp_path_factory.mktemp("data")
    parquet(folder / "train.parquet", [row("What is 6 * 7?", "42")] * 2)
    (folder / "documents.jsonl").write_text(json.dumps({"title": "Six", "text": "A number."}) + "\n")
    run_command("index", ["--output", str(folder / "index"), str(folder / "documents.jsonl")])
    return ["--data", str(folder / "train.parquet"), "--index", str(folder / "index")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Architecture -> folder of a tiny model, made once."""

    @functools.cache
    def make(architecture: str) -> str:
        folder = tmp_path_factory.mktemp(architecture)
        return tiny_model(folder, architecture, max_position_embeddings=16384, vocab_size=272)

    return make


def build(name: str, data: list[str], model, *more: str) -> AlgorithmConfig:
    """The recipe's configuration for a tiny model of its architecture, with the recipe's own command line."""
    recipe = importlib.import_module(f"tuned_examples.{name}")
    return recipe.make_config(recipe.parser.parse_args(["--model", model(RECIPES[name][0]), *data, *more]))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_authors_settings_and_is_valid(name, data, model, unknown_cluster):
    config = build(name, data, model)
    config.validate()
    _, max_context_tokens, max_tool_calls, tools = RECIPES[name]
    settings = {
        "num_rollouts": 16,
        "num_initial_rollouts": 8,
        "branching": "probability",
        "branch_base_probability": 0.5,
        "branch_entropy_weight": 0.2,
        "branch_width": 1,
        "entropy_window": 20,
        "entropy_normalization": "sum_log_vocab",
        "questions_per_batch": 128,
        "questions_per_minibatch": 16,
        "max_context_tokens": max_context_tokens,
        "max_tool_calls": max_tool_calls,
        "lr": 1e-6,
        "kl_coeff": 0.0,
        "clip_low": 0.2,
        "clip_high": 0.2,
        "dual_clip": 3.0,
        "adam_betas": (0.9, 0.999),
        "weight_decay": 0.01,
        "loss_aggregation": "token_mean",
        "temperature": 1.0,
        "num_learners": 4,
        "sharding": "fsdp2",
        "num_gpus_per_learner": 1.0,
        "num_env_runners": 4,
        "num_gpus_per_env_runner": 1.0,
    }
    assert {key: getattr(config, key) for key in settings} == settings
    search = config.env_config["tools"]["search"]
    assert (search["top_k"], search["max_result_tokens"]) == (10, 2500)
    assert sorted(config.env_config["tools"]) == tools


@pytest.mark.parametrize(
    ("algorithm", "own"),
    [
        ("GRPO", {"branching": "never"}),
        ("DAPO", {"branching": "never", "clip_high": 0.28, "overlong_buffer_tokens": 819}),
        ("ReinforcePlusPlus", {"branching": "never", "kl_in_reward": True, "kl_coeff": 0.01}),
        ("AEPO", {"keep_clipped_gradient": True, "questions_per_minibatch": 16}),
    ],
)
def test_a_baseline_keeps_its_own_settings_and_takes_the_others(algorithm, own, data, model, unknown_cluster):
    config = build("reasoning_arpo", data, model, "--algo", algorithm)
    config.validate()
    assert config.algo_class.__name__ == algorithm
    expected = {"lr": 1e-6, "num_rollouts": 16, "questions_per_batch": 128, "clip_low": 0.2} | own
    assert {key: getattr(config, key) for key in expected} == expected


def test_the_command_line_has_the_last_word_on_sizes_and_forks(data, model, unknown_cluster):
    forks = ["--branching", "threshold", "--num-rollouts", "8", "--num-initial-rollouts", "2"]
    more = [*forks, "--questions-per-batch", "4", "--seed", "7"]
    config = build("reasoning_arpo", data, model, *more, "--max-response-tokens", "512")
    config.validate()
    names = ("branching", "branch_threshold", "num_rollouts", "num_initial_rollouts", "questions_per_batch", "seed")
    assert [getattr(config, name) for name in names] == ["threshold", 0.5, 8, 2, 4, 7]
    assert (config.questions_per_minibatch, config.max_response_tokens, config.max_context_tokens) == (4, 512, 2048)
    two_steps = build("reasoning_arpo", data, model, *more, "--num-epochs", "2")
    assert (config.dual_clip, two_steps.dual_clip) == (None, 3.0)
    halved = build("reasoning_arpo", data, model, "--questions-per-batch", "4", "--algo", "AEPO")
    assert halved.questions_per_minibatch == 2


def test_deep_search_has_the_web_with_a_cache_and_asks_rows_without_an_ability(model, unknown_cluster, tmp_path):
    """As in hard_search_1k.parquet: all of its answers are compared as those of questions of knowledge."""
    path = parquet(tmp_path / "hard.parquet", [{**row("Who?", "She"), "ability": None}])
    cache, url = str(tmp_path / "searches.sqlite"), "http://127.0.0.1:9"
    web = ["--search-backend", "searxng", "--search-url", url, "--cache", cache]
    config = build("deepsearch_qwen3_8b_arpo", ["--data", path, *web], model)
    config.validate()
    search = config.env_config["tools"]["search"]
    assert (search["backend"], search["base_url"], search["cache"]) == ("searxng", url, cache)
    task = DatasetTask(task=config.env_config["task"], path=config.env_config["path"])
    assert (task.question(0).answers, task.question(0).ability) == (("She",), "qa")


def test_held_out_questions_are_evaluated_in_fixed_order(data, model, unknown_cluster):
    config = build("reasoning_arpo", data, model, "--eval-data", data[1])
    config.validate()
    assert (config.evaluation_interval, config.evaluation_duration) == (5, 203)
    evaluation = config.get_evaluation_config_object()
    names = ("path", "split", "protocol")
    assert [evaluation.env_config[name] for name in names] == [[data[1]], "test", "tags_with_thought"]


def test_paths_on_the_command_line_may_be_relative(data, model, monkeypatch, tmp_path_factory):
    """Tune runs a trial in another directory."""
    folder = model("qwen2")
    monkeypatch.chdir(tmp_path_factory.getbasetemp())
    argv = ["--model", folder, *data, "--cache", data[1], "--eval-data", data[1], data[1], "--output", folder]
    relative = [os.path.relpath(part) if os.path.isabs(part) else part for part in argv]
    assert relative != argv
    recipe = importlib.import_module("tuned_examples.reasoning_arpo")
    assert vars(recipe.parser.parse_args(relative)) == vars(recipe.parser.parse_args(argv))
    assert recipe.parser.parse_args(["--model", "Qwen/Qwen2.5-3B-Instruct", *data]).model == "Qwen/Qwen2.5-3B-Instruct"


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ("0.25", {"gpu_memory_utilization": 0.225}),
        ("1", {"gpu_memory_utilization": 0.9}),
        ("2", {"gpu_memory_utilization": 0.9, "tensor_parallel_size": 2}),
    ],
)
def test_an_engine_takes_its_part_of_each_gpu(data, model, gpus, expected, unknown_cluster):
    config = build("reasoning_arpo", data, model, "--num-gpus-per-env-runner", gpus)
    config.validate()
    assert config.engine_kwargs == pytest.approx(expected)
    assert config.sleep_level == 0


def test_one_gpu_is_shared_and_the_engine_sleeps_during_updates(data, model, unknown_cluster):
    """As the recipe's text says."""
    text = importlib.import_module("tuned_examples.reasoning_arpo").__doc__
    (line,) = [line for line in text.splitlines() if line.strip().startswith("--num-learners 0")]
    config = build("reasoning_arpo", data, model, *line.split())
    config.validate()
    assert config.num_gpus_per_learner + config.num_env_runners * config.num_gpus_per_env_runner == 1
    assert (config.engine_kwargs, config.sleep_level) == ({"gpu_memory_utilization": pytest.approx(0.2)}, 2)


def test_without_a_gpu_all_is_in_one_process(data, model, unknown_cluster):
    cpu = ["--num-learners", "0", "--num-gpus-per-learner", "0", "--num-env-runners", "0"]
    config = build("reasoning_arpo", data, model, *cpu)
    config.validate()
    assert (config.engine_kwargs, config.num_gpus_per_env_runner, config.sharding) == ({}, 0, "none")
