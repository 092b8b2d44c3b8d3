"""Names of environments and tasks; and what users bring: by a name of their own, by "module:Class", or the class."""

from __future__ import annotations

import pytest
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import ENV_CREATOR, _global_registry

import rllib_arpo
from rllib_arpo.envs import register_task, registry
from rllib_arpo.envs.registry import ENVIRONMENTS, find_task, register_envs, validate_env_config, with_task
from rllib_arpo.envs.tasks import ArithmeticTask
from rllib_arpo.envs.tool_env import ToolEnv
from tests.helpers.own_task import NoDataclass, SquaresTask
from tests.helpers.own_tool import TallyTool


@pytest.fixture(autouse=True)
def no_other_tasks(monkeypatch):
    monkeypatch.setattr(registry, "_OWN_TASKS", {})


@pytest.mark.parametrize("task", ["squares", "tests.helpers.own_task:SquaresTask", SquaresTask])
def test_the_environment_asks_the_questions_of_an_own_task(begun, task):
    register_task("squares", SquaresTask)
    env = begun(3, task=task, first=7)
    assert (env.question.question_id, env.question.answers, list(env.tools)) == ("squares/10", ("100",), ["python"])


@pytest.mark.parametrize("tool", ["tests.helpers.own_tool:TallyTool", TallyTool])
def test_a_tool_of_ones_own_answers_with_its_options(begun, turn, tool):
    env = begun(tools={tool: {"unit": "signs"}, "python": {}})
    assert list(env.tools) == ["tally", "python"]
    assert turn(env, "0", "<tally>abc</tally>")[0] == "\n<result> 3 signs </result>\n"


def test_a_name_can_be_registered_again_but_no_built_in_one():
    register_task("squares", ArithmeticTask)
    register_task("squares", SquaresTask)
    assert find_task("squares") is SquaresTask
    assert find_task("arithmetic") is ArithmeticTask
    with pytest.raises(ValueError, match=r"^Unknown task 'squers': did you mean 'squares'\?$"):
        find_task("squers")
    for name in ("gsm8k", "", "a:b"):
        with pytest.raises(ValueError, match=f"^register_task: the name '{name}' is a built-in task's, empty, or has"):
            register_task(name, SquaresTask)
    for task_class in (NoDataclass, dict, SquaresTask()):
        with pytest.raises(ValueError, match=r"is not a dataclass that subclasses rllib_arpo\.envs\.tasks\.Task\.$"):
            register_task("squares", task_class)


def test_a_worker_process_knows_what_the_driver_registered(ray_cluster, model_folder):
    """The class is made here, so that no worker can import it; the worker imports the package anew."""
    import ray

    class TenthsTask(SquaresTask):
        def question(self, number, tools=()):
            return super().question(number // 10, tools)

    register_task("tenths", TenthsTask)

    @ray.remote(num_cpus=1)
    def ask(number: int) -> str:
        import rllib_arpo

        rllib_arpo.register()
        env = ToolEnv({"model_name_or_path": model_folder, "task": "tenths"})
        env.reset(options={"question": number})
        return env.question.question_id

    assert ray.get(ask.remote(30)) == "squares/5"


def test_where_tune_has_forgotten_the_names_register_tells_them_again():
    """As after a second `ray.init()`."""
    register_task("squares", SquaresTask)
    _global_registry.unregister(ENV_CREATOR, "rllib_arpo task squares")
    rllib_arpo.register()
    assert _global_registry.get(ENV_CREATOR, "rllib_arpo task squares")() is SquaresTask


def test_right_configurations_pass(tokenizer_folder):
    for name in ("ToolMath-v0", "Catalogue-v0"):
        validate_env_config(name, {"model_name_or_path": tokenizer_folder, "split": "test"})
    validate_env_config("CartPole-v1", {"anything": 1})


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
