"""The recipes for GPUs, built on a tiny random model of the same architecture with a chat template in its style."""

import importlib
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.commands import run_command
from tests.helpers.models import byte_tokenizer, tiny_model

LLAMA3_TEMPLATE = (
    "{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
QWEN3_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'].split('</think>')[-1].lstrip('\n') }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
#: (recipe, architecture) -> (chat template or None for ChatML, end of the prompt, longest context, tool calls).
RECIPES = {
    ("reasoning_arpo", "qwen2"): (None, "<|im_end|>\n<|im_start|>assistant\n", 5632, 3),
    ("reasoning_arpo", "llama"): (
        LLAMA3_TEMPLATE,
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        5632,
        3,
    ),
    ("deepsearch_qwen3_8b_arpo", "qwen3"): (QWEN3_TEMPLATE, "<|im_end|>\n<|im_start|>assistant\n", 12000, 6),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The command line of a recipe without its model: two questions and one document."""
    folder = tmp_path_factory.mktemp("data")
    row = {
        "prompt": [{"role": "user", "content": "What is 6 * 7?"}],
        "ability": "math",
        "reward_model": {"ground_truth": "42", "style": "rule"},
    }
    pq.write_table(pa.Table.from_pylist([row, row]), folder / "train.parquet")
    (folder / "documents.jsonl").write_text(json.dumps({"title": "Six", "text": "A number."}) + "\n")
    run_command("index", ["--output", str(folder / "index"), str(folder / "documents.jsonl")])
    return ["--data", str(folder / "train.parquet"), "--index", str(folder / "index")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Architecture and chat template -> folder of a tiny model, made once."""
    made = {}

    def make(architecture: str, chat_template: str | None) -> str:
        if architecture not in made:
            folder = tmp_path_factory.mktemp(architecture)
            made[architecture] = tiny_model(folder, architecture, max_position_embeddings=16384, vocab_size=272)
            if chat_template is not None:
                tokenizer = byte_tokenizer()
                if "<|eot_id|>" in chat_template:
                    tokenizer.add_special_tokens({"eos_token": "<|eot_id|>"})
                tokenizer.chat_template = chat_template
                tokenizer.save_pretrained(folder)
        return made[architecture]

    return make


def build(name: str, architecture: str, data: list[str], model) -> AlgorithmConfig:
    """The recipe's configuration for a tiny model of an architecture, with the recipe's own command line."""
    recipe = importlib.import_module(f"tuned_examples.{name}")
    chat_template, *_ = RECIPES[name, architecture]
    return recipe.make_config(recipe.parser.parse_args(["--model", model(architecture, chat_template), *data]))


@pytest.mark.parametrize(("name", "architecture"), RECIPES)
def test_a_recipe_has_the_authors_settings_and_is_valid(name, architecture, data, model, unknown_cluster):
    config = build(name, architecture, data, model)
    config.validate()
    *_, max_context_tokens, max_tool_calls = RECIPES[name, architecture]
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
    assert config.env_config["tools"]["search"]["top_k"] == 10


@pytest.mark.parametrize(("name", "architecture"), RECIPES)
def test_a_recipe_asks_its_questions_in_the_models_own_chat_format(name, architecture, data, model):
    from transformers import AutoTokenizer

    from rllib_arpo.envs.registry import make_tool_env

    config = build(name, architecture, data, model)
    limits = {key: getattr(config, key) for key in ("model_name_or_path", "max_context_tokens", "max_response_tokens")}
    env = make_tool_env(config.env, {**config.env_config, **limits})
    observations, _ = env.reset(options={"question": 0})
    prompt = AutoTokenizer.from_pretrained(config.model_name_or_path).decode(observations["0"])
    assert prompt.endswith("What is 6 * 7?" + RECIPES[name, architecture][1])
    assert sorted(env.tools) == ["browse", "python", "search"][name != "deepsearch_qwen3_8b_arpo" :]


@pytest.mark.parametrize("name", sorted({name for name, _ in RECIPES}))
def test_a_recipe_says_where_it_starts_what_it_needs_and_that_it_is_not_measured(name):
    text = importlib.import_module(f"tuned_examples.{name}").__doc__
    assert " cold-start --model " in text
    assert "Hardware: 8 GPUs of " in text
    assert "Not measured: needs 8 GPUs." in text.splitlines()
    assert "Result" not in text


def test_search_may_be_the_web_with_a_cache(data, model, monkeypatch, tmp_path, unknown_cluster):
    monkeypatch.setenv("SERPER_API_KEY", "key")
    recipe = importlib.import_module("tuned_examples.deepsearch_qwen3_8b_arpo")
    argv = ["--model", model("qwen3", QWEN3_TEMPLATE), *data[:2], "--search-backend", "serper"]
    config = recipe.make_config(recipe.parser.parse_args([*argv, "--cache", str(tmp_path / "searches.sqlite")]))
    config.validate()
    assert config.env_config["tools"] == {
        "search": {"top_k": 10, "backend": "serper", "cache": str(tmp_path / "searches.sqlite")},
        "python": {},
        "browse": {},
    }


def test_held_out_questions_are_evaluated_in_fixed_order(data, model, unknown_cluster):
    recipe = importlib.import_module("tuned_examples.reasoning_arpo")
    argv = ["--model", model("qwen2", None), *data, "--eval-data", data[1]]
    config = recipe.make_config(recipe.parser.parse_args(argv))
    config.validate()
    assert config.evaluation_interval == 10
    assert config.evaluation_duration == 180
    evaluation = config.get_evaluation_config_object()
    assert evaluation.env_config["path"] == data[1]
    assert evaluation.env_config["split"] == "test"
    assert evaluation.env_config["protocol"] == "tags_with_thought"


def test_paths_on_the_command_line_may_be_relative(data, model, monkeypatch, tmp_path_factory):
    """Tune runs a trial in another directory."""
    folder = model("qwen2", None)
    monkeypatch.chdir(tmp_path_factory.getbasetemp())
    argv = ["--model", folder, *data, "--cache", data[1], "--eval-data", data[1]]
    relative = [os.path.relpath(part) if os.path.isabs(part) else part for part in argv]
    assert relative != argv
    recipe = importlib.import_module("tuned_examples.reasoning_arpo")
    assert vars(recipe.parser.parse_args(relative)) == vars(recipe.parser.parse_args(argv))
    assert recipe.parser.parse_args(["--model", "Qwen/Qwen2.5-3B-Instruct", *data]).model == "Qwen/Qwen2.5-3B-Instruct"


@pytest.mark.parametrize(("gpus", "utilization"), [("0.25", 0.225), ("1", 0.9), ("2", 0.9)])
def test_an_engine_takes_its_part_of_each_gpu(data, model, gpus, utilization):
    recipe = importlib.import_module("tuned_examples.reasoning_arpo")
    argv = ["--model", model("qwen2", None), *data, "--num-gpus-per-env-runner", gpus]
    config = recipe.make_config(recipe.parser.parse_args(argv))
    assert config.engine_kwargs == {"gpu_memory_utilization": pytest.approx(utilization)}


def test_a_missing_argument_is_named(capsys):
    recipe = importlib.import_module("tuned_examples.deepsearch_qwen3_8b_arpo")
    with pytest.raises(SystemExit):
        recipe.parser.parse_args(["--model", "m", "--index", "d.index"])
    assert capsys.readouterr().err.splitlines()[-1].endswith("error: the following arguments are required: --data")


def test_a_recipe_runs_one_small_iteration(data, model, ray_cluster):
    """With an engine that only knows one call, one right and one wrong answer, without a GPU."""
    config = build("deepsearch_qwen3_8b_arpo", "qwen3", data, model)
    replies = ["<search> six </search>", "<answer> \\boxed{42} </answer>", "<answer> \\boxed{41} </answer>"]
    tokenizer = byte_tokenizer()
    replies = [tokenizer("<think> so </think>" + reply)["input_ids"] for reply in replies]
    config.language_model(engine="scripted", engine_kwargs={"replies": replies}, dtype="float32")
    config.adaptive_rollout(num_rollouts=4, num_initial_rollouts=2)
    config.training(questions_per_batch=2, questions_per_minibatch=1, lr=1e-3, sharding="none")
    config.env_runners(num_env_runners=0, num_gpus_per_env_runner=0, num_envs_per_env_runner=2)
    config.learners(num_learners=0, num_gpus_per_learner=0)
    algo = config.build_algo()
    try:
        before = algo.learner_group.get_weights()["default_policy"]
        result = algo.train()
        after = algo.learner_group.get_weights()["default_policy"]
    finally:
        algo.stop()
    rollout = result["env_runners"]
    # Nothing but the answer can be wrong: a trajectory has reward 1 or 0, and no tool pair earns the bonus.
    assert rollout["format_valid"] == 1.0
    assert 0.0 < rollout["accuracy"] < 1.0
    assert rollout["episode_return_mean"] == pytest.approx(rollout["accuracy"])
    assert rollout["tool_calls_executed"] > 0
    assert any((before[name] != after[name]).any() for name in before)
