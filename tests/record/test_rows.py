"""The rows of a tree, and the tree of the rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

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
from rllib_arpo.record.schema import SCHEMA
from tests.helpers.approved import assert_approved
from tests.helpers.models import TOKENIZER_SIZE
from tests.helpers.trees import assert_same, random_tree
from tests.record.trees import TOKENIZER, TREE, ids

ROWS = Path(__file__).with_name("rows.txt")
FACTS = QuestionFacts("training", iteration=7, number=41, seconds=2.5)


def advantages() -> TreeAdvantages:
    """Of both turns of "0" and the turn of "1"."""
    good, bad = TurnAdvantages(1, 2.0, 1.0, 0.0, 0.5), TurnAdvantages(1, 3.0, 0.0, -1.5, -0.5)
    return TreeAdvantages({"0": 0.5, "1": -0.5}, {("0", 0): good, ("0", 1): good, ("1", 0): bad})


def written(tree: QuestionTree, tokenizer=TOKENIZER, **more) -> list[dict]:
    question = RecordedQuestion.decoded(tree, FACTS, tokenizer, {}, **more)
    return pa.Table.from_pylist(question_rows(question), schema=SCHEMA).to_pylist()


def test_the_rows_of_a_small_tree_are_those_of_the_file():
    """Without what is empty. The two bytes of "é" are two tokens; a turn after a response has the node before it."""
    rows = written(TREE, advantages=advantages())
    lines = [[f"{name}: {value!r}\n" for name, value in row.items() if value is not None] for row in rows]
    assert_approved(ROWS, "\n".join("".join(row) for row in lines))


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


def test_a_broken_character_of_a_tokenizer_with_a_token_for_each_byte_has_no_ends():
    backend = Tokenizer(models.BPE({"▁a": 0, "<0x0A>": 1, "<0xE2>": 2, "b": 3}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    llama = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert token_text(llama, [0, 1, 2, 3]) == (" a\ufffd\ufffdb", None)
    assert token_text(llama, [0, 1, 3]) == (" a\nb", [2, 3, 4])


def test_any_tokens_have_their_text_and_their_ends():
    """Most random bytes are not UTF-8, and the last ids are beyond the tokenizer."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        tokens = rng.integers(TOKENIZER_SIZE + 5, size=30)
        text, ends = token_text(TOKENIZER, tokens)
        assert text == TOKENIZER.decode(tokens.tolist())
        assert (len(ends), ends[-1]) == (30, len(text))
        assert ends == sorted(ends)
