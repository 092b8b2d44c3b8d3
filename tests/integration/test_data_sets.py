"""Data sets in their own format: from the file to a tree's reward, and to the labels of a cold start."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rllib_arpo.cold_start.examples import IGNORED, load_examples
from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.rollout.messages import question_refs
from rllib_arpo.rollout.question_loop import QuestionLoop
from tests.helpers.chat_templates import QWEN25, jinja
from tests.helpers.datasets import LAYOUTS, WRITERS
from tests.helpers.models import byte_tokenizer
from tests.helpers.scripts import scripted_engine
from tests.rollout.conftest import settings

#: Data set -> the ending of its files, right answers as a model writes them, and wrong ones.
ANSWERS = {
    "verl's GSM8K": ("parquet", ["5", "1,200", "-2"], ["6", "12", "2"]),
    "Search-R1's NQ": ("parquet", ["Armstrong", "new york city", "Jane Austen"], ["Oslo", "Geneva", "Mary Shelley"]),
    "DAPO-Math-17k": ("parquet", ["2", "0.5", "\\sqrt{3}"], ["3", "0.2", "3"]),
    "TriviaQA": ("json", ["neil armstrong", "NYC", "jane austen"], ["Oslo", "Geneva", "Mary Shelley"]),
    "a fine-tuning log of OpenAI's": ("jsonl", ["12 euros", "80 euros", "3 euros"], ["1", "2", "4"]),
}
CALL = "<search> brass lamp </search>"


def sampled_trees(env: ToolEnv, right: list[str], wrong: list[str]) -> list:
    """Of each question the tree of two roots: one searches and answers rightly, one answers wrongly."""
    asked = []

    def encoded(text: str) -> list[int]:
        return env.tokenizer.encode(text, add_special_tokens=False)

    def script(request, times_asked) -> ScriptedReply:
        prompt = tuple(request.prompt_token_ids)
        goes_on = next((i for i, begin in enumerate(asked) if prompt[: len(begin)] == begin), len(asked))
        if goes_on == len(asked):
            asked.append(prompt)
        if prompt == asked[goes_on]:
            return ScriptedReply(encoded(f"<answer> \\boxed{{{wrong[goes_on]}}} </answer>" if times_asked else CALL))
        return ScriptedReply(encoded(f"<answer> \\boxed{{{right[goes_on]}}} </answer>"))

    config = settings(num_initial_rollouts=2, max_context_tokens=8192, branching="none")
    trees = []
    engine = scripted_engine(script, vocab_size=len(env.tokenizer))
    with ThreadPoolExecutor(1) as thread, QuestionLoop(engine, thread) as loop:
        for number in range(3):
            loop.submit(question_refs([number]), [env], config)
            while loop.in_flight:
                trees += [question.tree for question in loop.take()]
    return trees


def learnt(tokenizer, example: dict[str, list[int]]) -> str:
    return tokenizer.decode([label for label in example["labels"] if label != IGNORED])


@pytest.mark.parametrize("name", ANSWERS)
def test_from_a_file_to_rewards(tmp_path, model_folder, name):
    ending, right, wrong = ANSWERS[name]
    published = LAYOUTS[name]
    path = WRITERS[ending](tmp_path / f"rows.{ending}", published.rows)
    tools = {"search": {"documents": [{"title": "brass lamp", "text": "12 euros"}]}}
    keys = {"task": "parquet", "path": path, "split": "test", "tools": tools, **published.keys}
    env = ToolEnv({"model_name_or_path": model_folder, "max_context_tokens": 8192, **keys})
    trees = sampled_trees(env, right, wrong)
    prompts = [env.tokenizer.decode(tree.prompt.tolist()) for tree in trees]
    assert [asked in prompt for asked, prompt in zip(published.questions, prompts, strict=True)] == [True] * 3
    assert [tree.returns().tolist() for tree in trees] == [[1.0, 0.0]] * 3


def test_a_log_of_openai_is_learnt_as_the_protocol_writes_its_calls(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = jinja(QWEN25)
    path = WRITERS["jsonl"](tmp_path / "log.jsonl", LAYOUTS["a fine-tuning log of OpenAI's"].rows)
    examples = load_examples(tokenizer, path, 8192, "function_calling")
    assert [learnt(tokenizer, example) for example in examples] == [
        f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{thing}"}}}}\n</tool_call><|im_end|>'
        f"It costs \\boxed{{{price} euros}}.<|im_end|>"
        for thing, price in (("lamp", 12), ("chair", 80), ("cup", 3))
    ]
