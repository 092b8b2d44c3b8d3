"""The rows of a tree, literally."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from rllib_arpo.core.tree import QuestionTree, fork_path
from rllib_arpo.record.question import (
    QuestionFacts,
    RecordedQuestion,
    TreeAdvantages,
    TurnAdvantages,
    question_rows,
    recorded_question,
    token_text,
)
from rllib_arpo.record.schema import ANSWER, SCHEMA, TURN
from tests.helpers.models import TOKENIZER_SIZE
from tests.helpers.trees import assert_same, random_tree
from tests.record.trees import TOKENIZER, TREE, ids

FACTS = QuestionFacts("training", iteration=7, number=41, seconds=2.5)
NODE = ("level", "delta", "probability", "eligible", "budget", "children")
ADVANTAGE = ("advantage", "leaves", "weight", "soft_positive", "soft_negative", "hard_advantage")


def advantages() -> TreeAdvantages:
    """Of both turns of "0" and the turn of "1"."""
    good, bad = TurnAdvantages(1, 2.0, 1.0, 0.0, 0.5), TurnAdvantages(1, 3.0, 0.0, -1.5, -0.5)
    return TreeAdvantages({"0": 0.5, "1": -0.5}, {("0", 0): good, ("0", 1): good, ("1", 0): bad})


def written(tree: QuestionTree, tokenizer=TOKENIZER, **more) -> list[dict]:
    question = RecordedQuestion.decoded(tree, FACTS, tokenizer, {}, **more)
    return pa.Table.from_pylist(question_rows(question), schema=SCHEMA).to_pylist()


def test_the_rows_of_a_small_tree_begin_with_a_turn_that_calls_a_tool():
    rows = written(TREE, advantages=advantages())
    assert [(row["agent_id"], row["turn"]) for row in rows] == [("0", 0), ("0", 1), ("1", 0), ("2", None), ("0.0", 0)]
    assert rows[0] == {
        "purpose": "training",
        "iteration": 7,
        "number": 41,
        "question_id": "lamps",
        "question_seconds": 2.5,
        "trained": True,
        "prompt": "Q?",
        "prompt_tokens": 2,
        "prompt_ids": ids("Q?").tolist(),
        "agent_id": "0",
        "parent": None,
        "inherited_turns": 0,
        "topped_up": False,
        "stop_reason": "answer",
        "counts": True,
        "reward": 1.0,
        "accuracy": 1.0,
        "format_valid": True,
        "advantage": 0.5,
        "turn": 0,
        "depth": 0,
        "text": "<s>é",
        "token_ids": ids("<s>é").tolist(),
        # The two bytes of "é" are two tokens.
        "token_ends": [1, 2, 3, 3, 4],
        "log_probs": [-1.0] * 5,
        "entropies": [0.5, 1.0],
        "weight_versions": [3, 3, 3, 3, 3],
        "turn_reward": 0.25,
        "started_s": 0.0,
        "generated_s": 1.0,
        "answered_s": 1.5,
        "tool": "search",
        "tool_input": "lamp",
        "tool_status": "ok",
        "tool_seconds": 0.5,
        "tool_output": "12",
        "tool_output_tokens": 2,
        "tool_output_ids": ids("12").tolist(),
        "new_context": False,
        "after_tool": None,
        **dict.fromkeys(NODE),
        "leaves": 1,
        "weight": 2.0,
        "soft_positive": 1.0,
        "soft_negative": 0.0,
        "hard_advantage": 0.5,
        **dict.fromkeys(column.name for column in ANSWER),
    }


def test_the_rows_of_other_turns_and_of_a_trajectory_without_one():
    _, second, _, without, fork = written(TREE, advantages=advantages())
    # A turn after a response has the node before it.
    node = {"level": 1.25, "delta": 0.25, "probability": 0.55, "eligible": True, "budget": 2, "children": 1}
    assert {name: second[name] for name in ("after_tool", *NODE)} == {"after_tool": "search", **node}
    assert (second["prompt_ids"], second["tool"], second["tool_output_tokens"]) == (None, None, 0)
    assert {without[column.name] for column in TURN} == {None}
    assert (without["agent_id"], without["topped_up"], without["stop_reason"]) == ("2", True, "engine_failure")
    assert (fork["parent"], fork["inherited_turns"], fork["depth"], fork["answered_s"]) == ("0", 1, 1, None)
    assert (fork["after_tool"], fork["weight_versions"], fork["counts"]) == ("search", [4], False)
    assert [fork[name] for name in ADVANTAGE] == [None, 0, 0.0, 0.0, 0.0, None]
    assert {fork[name] for name in NODE} == {None}


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_the_rows_give_the_question_back(seed):
    shape = {"max_forks": 6, "masked_probability": 0.2, "new_context_probability": 0.3}
    tree = TREE if seed is None else random_tree(np.random.default_rng(seed), **shape)
    # The record has the trajectories in their logical order.
    logical = sorted(tree.trajectories, key=lambda trajectory: fork_path(trajectory.agent_id))
    question = recorded_question(written(tree), {"k": 20})
    assert_same(question.tree, replace(tree, trajectories=tuple(logical)))
    texts = RecordedQuestion.decoded(tree, FACTS, TOKENIZER, {"k": 20})
    assert (question.facts, question.texts, question.settings) == (FACTS, texts.texts, {"k": 20})
    assert (question.advantages, question.answers) == (None, {})


def test_the_advantages_are_given_back():
    found = recorded_question(written(TREE, advantages=advantages()), {}).advantages
    assert found.leaves == advantages().leaves
    assert found.turns == advantages().turns | {("0.0", 0): TurnAdvantages()}


@pytest.mark.parametrize(
    ("tokens", "text", "ends"),
    [
        (ids(""), "", []),
        (ids("ab"), "ab", [1, 2]),
        (ids("a<|im_end|>b"), "a<|im_end|>b", [1, 11, 12]),
        (ids("🎉!"), "🎉!", [0, 0, 0, 1, 2]),
        # A character that stays incomplete belongs to the last token.
        (ids("aé")[:2], "a\ufffd", [1, 2]),
    ],
)
def test_where_tokens_end(tokens, text, ends):
    assert token_text(TOKENIZER, tokens) == (text, ends)


def test_any_tokens_have_their_text_and_their_ends():
    """Most random bytes are not UTF-8, and the last ids are beyond the tokenizer."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        tokens = rng.integers(TOKENIZER_SIZE + 5, size=30)
        text, ends = token_text(TOKENIZER, tokens)
        assert text == TOKENIZER.decode(tokens.tolist())
        assert (len(ends), ends[-1]) == (30, len(text))
        assert ends == sorted(ends)
