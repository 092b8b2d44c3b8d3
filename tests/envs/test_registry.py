"""Names of environments; tasks and tools of users: a class, itself or as "module:Class"."""

from __future__ import annotations

import pytest
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import ENV_CREATOR, _global_registry

from rllib_arpo.envs.registry import ENVIRONMENTS, register_envs, validate_env_config, with_task
from rllib_arpo.envs.tool_env import ToolEnv
from tests.helpers.own_task import SquaresTask
from tests.helpers.own_tool import TallyTool


@pytest.mark.parametrize("task", ["tests.helpers.own_task:SquaresTask", SquaresTask])
def test_the_environment_asks_the_questions_of_an_own_task(begun, task):
    env = begun(3, task=task, first=7)
    assert (env.question.question_id, env.question.answers, list(env.tools)) == ("squares/10", ("100",), ["python"])


@pytest.mark.parametrize("tool", ["tests.helpers.own_tool:TallyTool", TallyTool])
def test_a_tool_of_ones_own_answers_with_its_options(begun, turn, tool):
    env = begun(tools={tool: {"unit": "signs"}, "python": {}})
    assert list(env.tools) == ["tally", "python"]
    assert turn(env, "0", "<tally>abc</tally>")[0] == "\n<result> 3 signs </result>\n"


def test_a_class_that_no_worker_can_import_travels_with_the_settings(ray_cluster, model_folder):
    import ray

    class TenthsTask(SquaresTask):
        def question(self, number, tools=()):
            return super().question(number // 10, tools)

    @ray.remote(num_cpus=1)
    def ask(env_config: dict) -> str:
        env = ToolEnv(env_config)
        env.reset(options={"question": 30})
        return env.question.question_id

    assert ray.get(ask.remote({"model_name_or_path": model_folder, "task": TenthsTask})) == "squares/5"


def test_the_name_of_an_environment_implies_its_task_and_is_known_to_tune(tokenizer_folder):
    context = with_task("ToolMath-v0", EnvContext({}, worker_index=3))
    assert (context, context.worker_index) == ({"task": "arithmetic"}, 3)
    with pytest.raises(ValueError, match="ToolMath-v0 asks the questions of the task 'arithmetic'"):
        with_task("ToolMath-v0", {"task": "trails"})
    validate_env_config("CartPole-v1", {"anything": 1})
    register_envs()
    for name in ENVIRONMENTS:
        assert _global_registry.contains(ENV_CREATOR, name)
    create = _global_registry.get(ENV_CREATOR, "ToolMath-v0")
    assert create({"model_name_or_path": tokenizer_folder, "split": "test"}).num_questions == 64
