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
from rllib_arpo.record.schema import ANSWER, SCHEMA
from tests.helpers.models import TOKENIZER_SIZE
from tests.helpers.trees import assert_same, random_tree
from tests.record.trees import TOKENIZER, TREE, ids

FACTS = QuestionFacts("training", iteration=7, number=41, seconds=2.5)
OF_QUESTION = {
    "purpose": "training",
    "iteration": 7,
    "number": 41,
    "question_id": "lamps",
    "question_seconds": 2.5,
    "trained": True,
    "prompt": "Q?",
    "prompt_tokens": 2,
    **{column.name: None for column in ANSWER},
}
FIRST = {
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
}
NO_NODE = {"level": None, "delta": None, "probability": None, "eligible": None, "budget": None, "children": None}
NO_CALL = {
    "tool": None, "tool_input": None, "tool_status": None, "tool_seconds": None,
    "tool_output": None, "tool_output_tokens": 0, "tool_output_ids": None, "prompt_ids": None,
    "new_context": False,
}  # fmt: skip


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
        **OF_QUESTION,
        **FIRST,
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
        "prompt_ids": ids("Q?").tolist(),
        "after_tool": None,
        **NO_NODE,
        "leaves": 1,
        "weight": 2.0,
        "soft_positive": 1.0,
        "soft_negative": 0.0,
        "hard_advantage": 0.5,
    }


def test_the_row_of_a_turn_after_a_response_has_the_node_before_it():
    assert written(TREE, advantages=advantages())[1] == {
        **OF_QUESTION,
        **FIRST,
        "turn": 1,
        "depth": 1,
        "text": "A",
        "token_ids": ids("A").tolist(),
        "token_ends": [1],
        "log_probs": [-1.0],
        "entropies": [2.0],
        "weight_versions": [3],
        "turn_reward": 0.75,
        "started_s": 1.5,
        "generated_s": 2.0,
        "answered_s": 2.0,
        **NO_CALL,
        "after_tool": "search",
        "level": 1.25,
        "delta": 0.25,
        "probability": 0.55,
        "eligible": True,
        "budget": 2,
        "children": 1,
        "leaves": 1,
        "weight": 2.0,
        "soft_positive": 1.0,
        "soft_negative": 0.0,
        "hard_advantage": 0.5,
    }


def test_a_trajectory_without_a_turn_has_a_row():
    row = written(TREE, advantages=advantages())[3]
    own = {name: value for name, value in row.items() if value is not None and name not in OF_QUESTION}
    assert own == {
        "agent_id": "2",
        "inherited_turns": 0,
        "topped_up": True,
        "stop_reason": "engine_failure",
        "counts": False,
        "reward": 0.0,
        "accuracy": 0.0,
        "format_valid": False,
    }


def test_a_masked_fork_has_no_advantage_and_is_not_examined_at_its_node():
    row = written(TREE, advantages=advantages())[4]
    assert (row["parent"], row["inherited_turns"], row["depth"], row["answered_s"]) == ("0", 1, 1, None)
    assert (row["after_tool"], row["weight_versions"]) == ("search", [4])
    assert {name: row[name] for name in NO_NODE} == NO_NODE
    assert (row["advantage"], row["leaves"], row["weight"], row["hard_advantage"]) == (None, 0, 0.0, None)


def test_what_was_not_trained_has_no_advantages():
    rows = written(TREE)
    names = ("advantage", "leaves", "weight", "soft_positive", "soft_negative", "hard_advantage")
    assert {row[name] for row in rows for name in names} == {None}
    assert {row["trained"] for row in rows} == {False}


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


def test_without_a_tokenizer_there_are_tokens_and_no_text():
    rows = written(TREE, tokenizer=None)
    assert rows[0]["token_ids"] == ids("<s>é").tolist()
    assert {row[name] for row in rows for name in ("prompt", "text", "tool_output", "token_ends")} == {None}


@pytest.mark.parametrize(
    ("text", "ends"), [("", []), ("ab", [1, 2]), ("a<|im_end|>b", [1, 11, 12]), ("🎉!", [0, 0, 0, 1, 2])]
)
def test_where_tokens_end(text, ends):
    assert token_text(TOKENIZER, ids(text)) == (text, ends)


def test_a_character_that_stays_incomplete_belongs_to_the_last_token():
    assert token_text(TOKENIZER, ids("aé")[:2]) == ("a�", [1, 2])


def test_any_tokens_have_their_text_and_their_ends():
    """Most random bytes are not UTF-8, and the last ids are beyond the tokenizer."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        tokens = rng.integers(TOKENIZER_SIZE + 5, size=30)
        text, ends = token_text(TOKENIZER, tokens)
        assert text == TOKENIZER.decode(tokens.tolist())
        assert (len(ends), ends[-1]) == (30, len(text))
        assert ends == sorted(ends)
