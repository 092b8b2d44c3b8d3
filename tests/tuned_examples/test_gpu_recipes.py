"""The recipes for GPUs, built on a tiny random model of the same architecture with a chat template in its style."""

import importlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.envs.retrieval import build_index
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
#: Recipe -> (architecture, chat template or None for ChatML, end of the prompt, longest context, tool calls).
RECIPES = {
    "reasoning_qwen2_5_3b_arpo": ("qwen2", None, "<|im_end|>\n<|im_start|>assistant\n", 5632, 3),
    "reasoning_qwen2_5_7b_arpo": ("qwen2", None, "<|im_end|>\n<|im_start|>assistant\n", 5632, 3),
    "reasoning_llama3_1_8b_arpo": (
        "llama",
        LLAMA3_TEMPLATE,
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        5632,
        3,
    ),
    "deepsearch_qwen3_8b_arpo": ("qwen3", QWEN3_TEMPLATE, "<|im_end|>\n<|im_start|>assistant\n", 12000, 6),
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
    build_index.main(["--output", str(folder / "index"), str(folder / "documents.jsonl")])
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


def build(name: str, data: list[str], model) -> AlgorithmConfig:
    """The recipe's configuration for the tiny model of its architecture, with the recipe's own command line."""
    recipe = importlib.import_module(f"tuned_examples.{name}")
    architecture, chat_template, *_ = RECIPES[name]
    return recipe.make_config(recipe.parser.parse_args(["--model", model(architecture, chat_template), *data]))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_authors_settings_and_is_valid(name, data, model):
    config = build(name, data, model)
    config.validate()
    *_, max_context_tokens, max_tool_calls = RECIPES[name]
    settings = {
        "num_rollouts": 16,
        "num_initial_rollouts": 8,
        "branching": "probability",
        "branch_base_probability": 0.5,
        "branch_entropy_weight": 0.2,
        "branch_width": 1,
        "questions_per_batch": 128,
        "questions_per_minibatch": 16,
        "max_context_tokens": max_context_tokens,
        "max_tool_calls": max_tool_calls,
        "lr": 1e-6,
        "kl_coeff": 0.0,
        "clip_low": 0.2,
        "clip_high": 0.2,
        "loss_aggregation": "token_mean",
        "temperature": 1.0,
        "num_learners": 4,
        "sharding": "fsdp2",
        "num_gpus_per_learner": 1.0,
        "num_env_runners": 4,
        "num_gpus_per_env_runner": 1.0,
    }
    assert {key: getattr(config, key) for key in settings} == settings


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_asks_its_questions_in_the_models_own_chat_format(name, data, model):
    from transformers import AutoTokenizer

    from rllib_arpo.envs.registry import make_env

    config = build(name, data, model)
    limits = {key: getattr(config, key) for key in ("model_name_or_path", "max_context_tokens", "max_response_tokens")}
    env = make_env(config.env, {**config.env_config, **limits})
    observations, _ = env.reset(options={"question": 0})
    prompt = AutoTokenizer.from_pretrained(config.model_name_or_path).decode(observations["0"])
    assert prompt.endswith("What is 6 * 7?" + RECIPES[name][2])
    assert sorted(env.tools) == ["browse", "python", "search"][name != "deepsearch_qwen3_8b_arpo" :]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_where_it_starts_what_it_needs_and_that_it_is_not_measured(name):
    text = importlib.import_module(f"tuned_examples.{name}").__doc__
    assert "python -m rllib_arpo.cold_start --model " in text
    assert "Hardware: 8 GPUs of " in text
    assert "Result: not measured, needs 8 GPUs." in text


def test_search_may_be_the_web_with_a_cache(data, model, monkeypatch, tmp_path):
    monkeypatch.setenv("SERPER_API_KEY", "key")
    recipe = importlib.import_module("tuned_examples.deepsearch_qwen3_8b_arpo")
    argv = ["--model", model("qwen3", QWEN3_TEMPLATE), *data[:2], "--search-backend", "serper"]
    config = recipe.make_config(recipe.parser.parse_args([*argv, "--cache", str(tmp_path / "searches.sqlite")]))
    config.validate()
    assert config.env_config["tools"] == {
        "search": {"backend": "serper", "cache": str(tmp_path / "searches.sqlite")},
        "python": {},
        "browse": {},
    }


def test_held_out_questions_are_evaluated_in_fixed_order(data, model):
    recipe = importlib.import_module("tuned_examples.reasoning_qwen2_5_3b_arpo")
    argv = ["--model", model("qwen2", None), *data, "--eval-data", data[1]]
    config = recipe.make_config(recipe.parser.parse_args(argv))
    config.validate()
    assert config.evaluation_interval == 10
    assert config.evaluation_duration == 180
    evaluation = config.get_evaluation_config_object()
    assert evaluation.env_config["path"] == data[1]
    assert evaluation.env_config["split"] == "test"
    assert evaluation.env_config["protocol"] == "tags_with_thought"


def test_a_missing_argument_is_named(capsys):
    recipe = importlib.import_module("tuned_examples.deepsearch_qwen3_8b_arpo")
    with pytest.raises(SystemExit):
        recipe.parser.parse_args(["--model", "m", "--index", "d.index"])
    assert capsys.readouterr().err.splitlines()[-1].endswith("error: the following arguments are required: --data")


@pytest.fixture
def local_ray():
    started_here = not ray.is_initialized()
    ray.init(num_cpus=2, include_dashboard=False, ignore_reinit_error=True)
    yield
    if started_here:
        ray.shutdown()


def test_a_recipe_runs_one_small_iteration(data, model, local_ray):
    """With an engine that only knows one call, one right and one wrong answer, without a GPU."""
    config = build("deepsearch_qwen3_8b_arpo", data, model)
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
