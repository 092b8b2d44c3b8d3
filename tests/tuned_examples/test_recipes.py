"""The configurations of all recipes: their settings, every algorithm, what the command line changes and refuses."""

import functools
import importlib
import json

import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.envs.tasks.dataset import DatasetTask
from tests.helpers.models import tiny_model
from tests.helpers.parquet import parquet, row

ALGORITHMS = ("ARPO", "GRPO", "DAPO", "ReinforcePlusPlus", "AEPO", "TreeGRPO")
SMALL = {"num_learners": 0, "branch_threshold": "auto", "num_initial_rollouts": 2, "branch_width": "wide"}
AUTHORS = {
    "num_rollouts": 16, "num_initial_rollouts": 8, "branching": "probability", "branch_base_probability": 0.5,
    "branch_entropy_weight": 0.2, "branch_width": 1, "entropy_window": 20, "entropy_normalization": "sum_log_vocab",
    "questions_per_batch": 128, "questions_per_minibatch": 16, "lr": 1e-6, "kl_coeff": 0.0, "clip_low": 0.2,
    "clip_high": 0.2, "dual_clip": 3.0, "adam_betas": (0.9, 0.999), "weight_decay": 0.01,
    "loss_aggregation": "token_mean", "temperature": 1.0, "num_learners": 8, "sharding": "fsdp2",
    "num_gpus_per_learner": 0.1, "num_env_runners": 8, "num_gpus_per_env_runner": 0.9, "sleep_level": 2,
}  # fmt: skip
#: Recipe -> its settings.
RECIPES = {
    "trails_small_arpo": SMALL | {"num_rollouts": 16, "questions_per_minibatch": 4},
    "trails_smollm2_135m_arpo": SMALL | {"num_rollouts": 8, "branch_width": 1, "questions_per_minibatch": 6},
    "frozen_lake_arpo": SMALL | {"num_rollouts": 16, "max_tool_calls": 12},
    "reasoning_arpo": AUTHORS | {"max_context_tokens": 5632, "max_tool_calls": 3},
    "deepsearch_qwen3_8b_arpo": AUTHORS | {"max_context_tokens": 12000, "max_tool_calls": 6},
}
#: Recipe that takes --model -> the architecture of its models.
ARCHITECTURES = {"reasoning_arpo": "qwen2", "deepsearch_qwen3_8b_arpo": "qwen3"}
JUDGE = ["--judge-url", "http://127.0.0.1:9/v1", "--judge-model", "large"]
READER = ["--reader-url", "http://127.0.0.1:8/v1", "--reader-model", "small", "--reader-cache", "/pages.sqlite"]

pytestmark = pytest.mark.usefixtures("unknown_cluster")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The command line of a recipe on a data set without its model: two questions and one document."""
    folder = tmp_path_factory.mktemp("data")
    parquet(folder / "train.parquet", [row("What is 6 * 7?", "42")] * 2)
    (folder / "documents.jsonl").write_text(json.dumps({"title": "Six", "text": "A number."}) + "\n")
    run_command("index", ["--output", str(folder / "index"), str(folder / "documents.jsonl")])
    return ["--data", str(folder / "train.parquet"), "--index", str(folder / "index")]


@pytest.fixture(scope="module")
def build(tmp_path_factory, data, model_folder):
    """(recipe, its command line) -> its configuration, for a tiny model of its architecture."""

    @functools.cache
    def model(architecture: str) -> str:
        folder = tmp_path_factory.mktemp(architecture)
        return tiny_model(folder, architecture, max_position_embeddings=16384, vocab_size=272)

    def make(name: str, *argv: str):
        recipe = importlib.import_module(f"tuned_examples.{name}")
        if name not in ARCHITECTURES:
            return recipe.make_config(model_folder, recipe.parser.parse_args(argv))
        given = [] if "--data" in argv else data
        args = recipe.parser.parse_args(["--model", model(ARCHITECTURES[name]), *given, *argv])
        return recipe.make_config(recipe.make_model(args), args)

    return make


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", RECIPES)
def test_every_algorithm_is_valid(name, algorithm, build):
    config = build(name, "--algo", algorithm, "--seed", "3")
    config.validate()
    assert config.algo_class.__name__ == algorithm
    assert config.seed == 3
    if algorithm == "ARPO":
        assert {key: getattr(config, key) for key in RECIPES[name]} == RECIPES[name]


@pytest.mark.parametrize(("name", "argv", "expected"), [
    ("reasoning_arpo", "--algo GRPO", {"branching": "never", "lr": 1e-6, "num_rollouts": 16}),
    ("reasoning_arpo", "--algo DAPO", {"branching": "never", "clip_high": 0.28, "overlong_buffer_tokens": 819}),
    ("reasoning_arpo", "--algo ReinforcePlusPlus", {"branching": "never", "kl_in_reward": True, "kl_coeff": 0.01}),
    ("reasoning_arpo", "--algo AEPO", {"keep_clipped_gradient": True, "questions_per_minibatch": 16}),
    ("reasoning_arpo", "--questions-per-batch 4 --algo AEPO", {"questions_per_minibatch": 2}),
    ("reasoning_arpo", "--questions-per-batch 4", {"questions_per_minibatch": 4, "dual_clip": None}),
    ("reasoning_arpo", "--questions-per-batch 4 --num-epochs 2", {"dual_clip": 3.0}),
    ("reasoning_arpo", "--max-response-tokens 512", {"max_response_tokens": 512, "max_context_tokens": 2048}),
    ("reasoning_arpo", "--branching threshold --num-initial-rollouts 2 --num-rollouts 8",
     {"branch_threshold": 0.5, "num_rollouts": 8, "num_initial_rollouts": 2}),
    ("reasoning_arpo", "--num-learners 1 --num-gpus-per-learner 1 --num-gpus-per-env-runner 0.25",
     {"engine_kwargs": {"gpu_memory_utilization": 0.225}, "sleep_level": 0}),
    ("reasoning_arpo", "--num-gpus-per-learner 1 --num-gpus-per-env-runner 2",
     {"engine_kwargs": {"gpu_memory_utilization": 0.9, "tensor_parallel_size": 2}}),
    ("reasoning_arpo", "--num-learners 0 --num-gpus-per-learner 0 --num-env-runners 0",
     {"engine_kwargs": {}, "num_gpus_per_env_runner": 0, "sharding": "none"}),
    ("trails_small_arpo", "--algo DAPO", {"overlong_buffer_tokens": 64}),
    ("trails_small_arpo", "--algo AEPO", {"questions_per_minibatch": 4, "num_initial_rollouts": 2, "branch_width": 1}),
    ("trails_small_arpo", "--algo AEPO --questions-per-minibatch 1", {"questions_per_minibatch": 1}),
    ("trails_small_arpo", "--algo GRPO --num-rollouts 8", {"num_rollouts": 8, "branching": "never"}),
    ("trails_small_arpo", "--num-rollouts 4", {"num_initial_rollouts": 2, "branch_width": "wide"}),
    ("trails_small_arpo", "--branch-width wide --branch-threshold 0.51 --attribution hard",
     {"branch_width": "wide", "branch_threshold": 0.51, "attribution": "hard"}),
    ("trails_small_arpo", "--branch-threshold auto --branch-share 0.3",
     {"branch_threshold": "auto", "branch_share": 0.3}),
    ("trails_small_arpo", "--form late", {"max_tool_calls": 11, "max_response_tokens": 448, "max_context_tokens": 512}),
    ("trails_smollm2_135m_arpo", "--algo DAPO", {"overlong_buffer_tokens": 80}),
    ("trails_smollm2_135m_arpo", "--algo AEPO", {"questions_per_minibatch": 3}),
    ("trails_smollm2_135m_arpo", "--algo AEPO --pre-monitoring-sensitivity None --record-share None",
     {"pre_monitoring_sensitivity": None, "record_share": None}),
    ("trails_smollm2_135m_arpo", "", {"record_share": 1.0}),
    ("frozen_lake_arpo", "--path 8", {"max_tool_calls": 20}),
])  # fmt: skip
def test_the_command_line_and_the_algorithm_have_the_last_word(name, argv, expected, build):
    config = build(name, *argv.split())
    config.validate()
    assert {key: getattr(config, key) for key in expected} == expected


@pytest.mark.parametrize(("name", "argv", "message"), [
    ("trails_small_arpo", "--algo GRPO --entropy-baseline running",
     "--entropy-baseline running: --algo GRPO with branching='never' forks nothing."),
    ("trails_small_arpo", "--branching never --random-fork-probability 0.3",
     "--random-fork-probability 0.3: --algo ARPO with branching='never' forks nothing."),
    ("trails_small_arpo", "--num-rollouts 0", "num_rollouts=0: must be an integer >= 1."),
    ("deepsearch_qwen3_8b_arpo", "--judge-url http://h", "--judge-url: needs --judge-url and --judge-model."),
    ("deepsearch_qwen3_8b_arpo", "--reader-cache /c", "--reader-cache: needs --reader-url and --reader-model."),
    ("deepsearch_qwen3_8b_arpo", "--python-url http://h",
     "--python-url http://h: belongs to --python-backend sandbox_fusion."),
    ("deepsearch_qwen3_8b_arpo", "--num-gpus-per-env-runner 1.5",
     "--num-gpus-per-env-runner 1.5: must be a whole number, or less than 1."),
    ("deepsearch_qwen3_8b_arpo", "--num-env-runners 0",
     "--num-env-runners 0: the engine would be in the learner's process; to share its GPU say "
     "--num-env-runners 1 and fractions of --num-gpus-per-learner and --num-gpus-per-env-runner."),
])  # fmt: skip
def test_an_option_without_effect_or_that_does_not_fit_is_refused(name, argv, message, build):
    with pytest.raises(ValueError) as raised:
        build(name, *argv.split()).validate()
    assert str(raised.value) == message


def test_thoughts_are_switched_off_in_template_and_protocol(build):
    config = build("reasoning_arpo", "--no-thinking")
    assert config.env_config["protocol"] == "tags"
    assert config.env_config["chat_template_kwargs"] == {"enable_thinking": False}
    assert build("reasoning_arpo").env_config["protocol"] == "tags_with_thought"


def test_evaluation_asks_held_out_questions(build, data):
    asked = {
        "trails_small_arpo": (["--form", "late"], {"seed": 3, "form": "late", "split": "test"}),
        "frozen_lake_arpo": ([], {"seed": 3, "split": "test"}),
        "reasoning_arpo": (["--eval-data", data[1]], {"path": [data[1]], "split": "test"}),
    }
    for name, (argv, expected) in asked.items():
        evaluation = build(name, "--seed", "3", *argv).get_evaluation_config_object()
        assert expected.items() <= evaluation.env_config.items()


def test_deep_search_has_the_web_a_judge_and_a_reader_of_pages(build, tmp_path, monkeypatch):
    """As in hard_search_1k.parquet a row has no ability: its answer is compared as one of a question of knowledge."""
    monkeypatch.setenv("SERPER_API_KEY", "key")
    path = parquet(tmp_path / "hard.parquet", [{**row("Who?", "She"), "ability": None}])
    cache, url = str(tmp_path / "searches.sqlite"), "http://127.0.0.1:9"
    web = ["--data", path, "--search-backend", "serper", "--search-url", url, "--cache", cache]
    plain, helped = (build("deepsearch_qwen3_8b_arpo", *web, *more).env_config for more in ([], [*JUDGE, *READER]))
    search = {"top_k": 10, "max_result_tokens": 2500, "backend": "serper", "base_url": url, "cache": cache}
    assert plain["tools"] == {"search": search, "python": {}, "browse": {}}
    reader = {"base_url": "http://127.0.0.1:8/v1", "model": "small", "cache_path": "/pages.sqlite"}
    assert helped == {
        **plain,
        "qa_metric": "judge",
        "judge": {"base_url": "http://127.0.0.1:9/v1", "model": "large"},
        "tools": {**plain["tools"], "browse": {"summary_model": reader}},
    }
    task = DatasetTask(task=plain["task"], path=plain["path"])
    assert (task.question(0).answers, task.question(0).ability) == (("She",), "qa")


@pytest.mark.parametrize(("argv", "expected"), [
    ([], {}),
    (["--python-backend", "unsafe"], {"unsafe": True}),
    (["--python-backend", "sandbox_fusion", "--python-url", "http://10.0.0.5:8080"],
     {"backend": "sandbox_fusion", "backend_options": {"url": "http://10.0.0.5:8080"}}),
])  # fmt: skip
def test_the_python_tool_has_the_back_end_of_the_command_line(argv, expected, build):
    assert build("reasoning_arpo", *argv).env_config["tools"]["python"] == expected
