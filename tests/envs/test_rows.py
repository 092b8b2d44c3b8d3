"""The task "rows": a file with a prompt, whose rows worlds begin with."""

import pytest

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.tasks import DatasetTask
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.worlds import Reply, World
from tests.helpers.datasets import WRITERS

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]


@pytest.mark.parametrize(
    ("row", "messages", "answers", "ability"),
    [
        ({"prompt": MESSAGES, "answers": ["A", "B"], "extra": {"key": [1, 2]}, "ability": "art"},
         (("system", "Be brief."), ("user", "Who?")), ("A", "B"), "qa"),
        ({"prompt": "Who?", "answer": 3, "ability": "math"}, (("user", "Who?"),), ("3",), "math"),
        ({"prompt": "Who?", "answer": ""}, (("user", "Who?"),), (), "qa"),
        ({"level": 3}, (), (), "qa"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ending", WRITERS)
def test_the_whole_row_is_what_a_world_begins_with(tmp_path, ending, row, messages, answers, ability):
    task = DatasetTask(task="rows", path=WRITERS[ending](tmp_path / f"r.{ending}", [row]), split="test")
    question = task.question(0)
    assert (question.messages, question.answers, question.ability) == (messages, answers, ability)
    assert (question.row, question.question_id, task.tools) == (row, "r/0", ())


class Echo(World):
    takes_text = True

    async def reset(self, question):
        return f"Level {question.row['level']}."

    async def act(self, action):
        return Reply("", reward=1.0, done=True)


def test_answers_are_needed_where_nothing_else_scores(tmp_path, tokenizer_folder, begun, turn):
    (tmp_path / "r.jsonl").write_text('{"prompt": "Who?", "level": 3}\n{"level": 4}')
    rows = {"task": "rows", "path": str(tmp_path / "r.jsonl"), "split": "test"}
    message = r"r\.jsonl, row 0: no right answer, which only a world or a reward of your own does without\.$"
    with pytest.raises(DataError, match=message):
        begun(**rows)
    with pytest.raises(DataError, match=message):
        ToolEnv.validate_config({"model_name_or_path": tokenizer_folder, "reward": {"accuracy": 1.0}, **rows})
    with pytest.raises(DataError, match=r"r\.jsonl, row 1: neither the task nor the world asks anything\.$"):
        begun(1, reward="valid_format", **rows)
    env = begun(reward=lambda path: len(path.answer), **rows)
    assert turn(env, "0", "<answer> \\boxed{me} </answer>")[1] == 2.0
    env = begun(1, world=Echo, **rows)
    assert "Level 4." in env.tokenizer.decode(env._prompt.tolist())
    assert turn(env, "0", "Hm.")[1] == 1.0
