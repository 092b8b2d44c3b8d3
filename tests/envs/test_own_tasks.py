"""Tasks of users: by a name of their own, or by "module:Class"."""

from __future__ import annotations

import pytest
from ray.tune.registry import ENV_CREATOR, _global_registry

import rllib_arpo
from rllib_arpo.envs import register_task, registry
from rllib_arpo.envs.registry import find_task
from rllib_arpo.envs.tasks import ArithmeticTask
from rllib_arpo.envs.tool_env import ToolEnv
from tests.helpers.own_task import NoDataclass, SquaresTask

BY_NAME = "tests.helpers.own_task:SquaresTask"


@pytest.fixture(autouse=True)
def no_other_tasks(monkeypatch):
    monkeypatch.setattr(registry, "_OWN_TASKS", {})


@pytest.mark.parametrize("task", ["squares", BY_NAME, SquaresTask])
def test_the_environment_asks_the_questions_of_an_own_task(model_folder, task):
    register_task("squares", SquaresTask)
    env = ToolEnv({"model_name_or_path": model_folder, "task": task, "first": 7})
    env.reset(options={"question": 3})
    assert (env.question.question_id, env.question.answers, list(env.tools)) == ("squares/10", ("100",), ["python"])


def test_a_name_can_be_registered_again_but_no_built_in_one():
    register_task("squares", ArithmeticTask)
    register_task("squares", SquaresTask)
    assert find_task("squares") is SquaresTask
    assert find_task("arithmetic") is ArithmeticTask
    for name in ("gsm8k", "", "a:b"):
        with pytest.raises(ValueError, match=f"^register_task: the name '{name}' is a built-in task's, empty, or has"):
            register_task(name, SquaresTask)


@pytest.mark.parametrize("task_class", [NoDataclass, dict, SquaresTask()])
def test_what_is_no_task_is_refused(task_class):
    with pytest.raises(ValueError, match=r"is not a dataclass that subclasses rllib_arpo\.envs\.tasks\.Task\.$"):
        register_task("squares", task_class)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("squers", r"^Unknown task 'squers': did you mean 'squares'\?$"),
        ("nowhere:Task", r"^env_config\['task'\]: 'nowhere:Task' cannot be imported \(No module named 'nowhere'\)\.$"),
        ("broken:Task", r"'broken:Task' cannot be imported \(name 'no_name' is not defined\)\.$"),
        ("tests.helpers.own_task:Task2", r"^env_config\['task'\]: .* cannot be imported \(module .* has no attribute"),
        (NoDataclass, r"^env_config\['task'\]: <class '.*NoDataclass'> is not a dataclass that subclasses"),
        ("tests.helpers.own_task:dataclass", r"^env_config\['task'\]: 'tests.helpers.own_task:dataclass' is not a da"),
    ],
)
def test_a_wrong_name_is_one_sentence(model_folder, task, message, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("no_name")
    monkeypatch.syspath_prepend(tmp_path)
    register_task("squares", SquaresTask)
    with pytest.raises(ValueError, match=message):
        ToolEnv({"model_name_or_path": model_folder, "task": task})


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
    with pytest.raises(ValueError, match="Unknown task 'tenth': did you mean 'tenths'"):
        find_task("tenth")


def test_where_tune_has_forgotten_the_names_register_tells_them_again():
    """As after a second `ray.init()`."""
    register_task("squares", SquaresTask)
    _global_registry.unregister(ENV_CREATOR, "rllib_arpo task squares")
    assert not _global_registry.contains(ENV_CREATOR, "rllib_arpo task squares")
    rllib_arpo.register()
    assert _global_registry.get(ENV_CREATOR, "rllib_arpo task squares")() is SquaresTask
