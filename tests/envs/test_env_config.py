import pytest
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import ENV_CREATOR, _global_registry

from rllib_arpo.envs.registry import ENVIRONMENTS, register_envs, validate_env_config, with_task
from rllib_arpo.envs.tool_env import ToolEnv


@pytest.mark.parametrize(("env_config", "message"), [
    ({"max_tool_call": 3}, "Unknown env_config key 'max_tool_call': did you mean 'max_tool_calls'?"),
    ({"path": "x.parquet"}, "Unknown env_config key 'path': known: "),
    ({"task": "catalog"}, "Unknown task 'catalog': did you mean 'catalogue'?"),
    ({"protocol": "tag"}, "Unknown protocol 'tag': did you mean 'tags'?"),
    ({"qa_metric": "f2"}, "Unknown qa_metric 'f2': known: exact_match, f1, judge."),
    ({"tools": ["python", "python"]}, "env_config['tools'] has two tools 'python'."),
    ({"tools": {"python": {"memory": 3}}}, "Unknown option of the tool 'python' 'memory': did you mean 'memory_mb'?"),
    ({"task": "arithmetic", "tools": ["search"]}, "The search tool needs `documents`"),
    ({"model_name_or_path": None}, "env_config has no 'model_name_or_path'."),
    ({"max_tool_calls": -1}, "env_config['max_tool_calls'] must be an integer >= 0, not -1."),
    ({"max_calls_per_tool": {"pyton": 2}}, "Unknown tool in env_config['max_calls_per_tool'] 'pyton': did you mean"),
    ({"max_calls_per_tool": {"python": 0}}, "env_config['max_calls_per_tool']['python'] must be an integer >= 1"),
    ({"max_calls_per_tool": {"python": 3}, "max_tool_calls": 3},
     "env_config['max_calls_per_tool']['python'] = 3 would do nothing: max_tool_calls = 3 must be larger."),
    ({"max_calls_per_tool": ["python"]}, "env_config['max_calls_per_tool'] must be an object: tool name -> number"),
    ({"max_prompt_tokens": "70"}, "env_config['max_prompt_tokens'] must be an integer >= 1, not '70'."),
    ({"max_prompt_tokens": True}, "env_config['max_prompt_tokens'] must be an integer >= 1, not True."),
    ({"tools": {"python": None}}, "env_config['tools']['python'] must be an object of options, not None."),
    ({"max_turn_tokens": 0}, "env_config['max_turn_tokens'] must be an integer >= 1, not 0."),
    ({"max_context_tokens": 50}, "the prompt has"),
])  # fmt: skip
def test_a_wrong_key_is_named(tokenizer_folder, env_config, message):
    with pytest.raises(ValueError) as error:
        ToolEnv.validate_config({"model_name_or_path": tokenizer_folder, "task": "catalogue", **env_config})
    assert message in str(error.value)


def test_right_configurations_pass(tokenizer_folder):
    for name in ("ToolMath-v0", "Catalogue-v0"):
        validate_env_config(name, {"model_name_or_path": tokenizer_folder, "split": "test"})
    validate_env_config("CartPole-v1", {"anything": 1})


def test_a_model_without_tokenizer_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere: no tokenizer"):
        validate_env_config("Catalogue-v0", {"model_name_or_path": str(tmp_path / "nowhere")})


def test_the_name_of_an_environment_implies_its_task():
    assert with_task("Catalogue-v0", {"seed": 1}) == {"seed": 1, "task": "catalogue"}
    context = with_task("ToolMath-v0", EnvContext({}, worker_index=3))
    assert (context, context.worker_index) == ({"task": "arithmetic"}, 3)
    with pytest.raises(ValueError, match="Catalogue-v0 asks the questions of the task 'catalogue'"):
        with_task("Catalogue-v0", {"task": "arithmetic"})
    assert set(ENVIRONMENTS) == {"ToolMath-v0", "Catalogue-v0", "Trails-v0", "ParquetQuestions-v0", "ToolEnv-v0"}


def test_the_names_are_known_to_tune(tokenizer_folder):
    register_envs()
    for name in ENVIRONMENTS:
        assert _global_registry.contains(ENV_CREATOR, name)
    create = _global_registry.get(ENV_CREATOR, "Catalogue-v0")
    assert create({"model_name_or_path": tokenizer_folder}).num_questions == 880
