"""Tasks of users: a class, itself or as "module:Class"."""

from __future__ import annotations

import pytest

from rllib_arpo.envs.tool_env import ToolEnv
from tests.helpers.own_task import NoDataclass, SquaresTask


@pytest.mark.parametrize("task", ["tests.helpers.own_task:SquaresTask", SquaresTask])
def test_the_environment_asks_the_questions_of_an_own_task(model_folder, task):
    env = ToolEnv({"model_name_or_path": model_folder, "task": task, "first": 7})
    env.reset(options={"question": 3})
    assert (env.question.question_id, env.question.answers, list(env.tools)) == ("squares/10", ("100",), ["python"])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("catalog", r"^Unknown task 'catalog': did you mean 'catalogue'\?$"),
        ("nowhere:Task", r"^env_config\['task'\]: 'nowhere:Task' cannot be imported \(No module named 'nowhere'\)\.$"),
        ("broken:Task", r"'broken:Task' cannot be imported \(name 'no_name' is not defined\)\.$"),
        ("tests.helpers.own_task:Task2", r"^env_config\['task'\]: .* cannot be imported \(module .* has no attribute"),
        (NoDataclass, r"^env_config\['task'\]: <class '.*NoDataclass'> is not a dataclass that subclasses"),
        (dict, r"^env_config\['task'\]: <class 'dict'> is not a dataclass that subclasses"),
        (SquaresTask(), r"^env_config\['task'\]: SquaresTask\(.*\) is not a dataclass that subclasses .*\.Task\.$"),
        ("tests.helpers.own_task:dataclass", r"^env_config\['task'\]: 'tests.helpers.own_task:dataclass' is not a da"),
    ],
)
def test_a_wrong_name_is_one_sentence(model_folder, task, message, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("no_name")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=message):
        ToolEnv({"model_name_or_path": model_folder, "task": task})


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
