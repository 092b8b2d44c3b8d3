"""The loss is taken on the assistant's own text only; a bad row is named."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rllib_arpo.cold_start.examples import IGNORED, load_examples, tokenize_transcript
from rllib_arpo.cold_start.transcripts import Segment, Transcript, read_transcripts, split_transcript
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.protocols.prompts import Chat
from tests.helpers.models import byte_tokenizer

CALL, RESULT, FINAL = (
    "<think>look</think><search>a</search>",
    "\n<result> 42 </result>\n",
    "<answer>\\boxed{42}</answer>",
)
ANSWER = CALL + RESULT + FINAL
TRANSCRIPT = [{"role": "user", "content": "What is a?"}, {"role": "assistant", "content": ANSWER}]


def test_every_turn_of_a_conversation_is_trained_on():
    messages = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "2"},
        {"role": "assistant", "content": "two"},
    ]
    assert split_transcript(Chat(byte_tokenizer()), Transcript(messages)) == [
        Segment("<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n", False),
        Segment("one", True),
        Segment("<|im_end|>", True),
        Segment("\n<|im_start|>user\n2<|im_end|>\n<|im_start|>assistant\n", False),
        Segment("two", True),
        Segment("<|im_end|>", True),
    ]


def test_no_token_straddles_the_end_of_a_tool_call():
    from transformers import AutoTokenizer

    from tuned_examples.smollm2 import smollm2_135m_instruct

    tokenizer = AutoTokenizer.from_pretrained(smollm2_135m_instruct())
    example = tokenize_transcript(Chat(tokenizer), Transcript(TRANSCRIPT))
    trained = [label for label in example["labels"] if label != IGNORED]
    assert tokenizer.decode(trained) == CALL + FINAL + "<|im_end|>"


def test_a_template_that_ends_turns_in_another_way_is_refused():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "</s>")
    messages = [*TRANSCRIPT, {"role": "user", "content": "And b?"}, {"role": "assistant", "content": "7"}]
    with pytest.raises(ValueError, match="does not end the assistant's messages with a special token"):
        split_transcript(Chat(tokenizer), Transcript(messages))


def test_jsonl_and_parquet_hold_the_same_transcripts(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": TRANSCRIPT, "tools": "null"}) + "\n\n")
    pq.write_table(pa.Table.from_pylist([{"messages": TRANSCRIPT}]), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert read_transcripts(tmp_path / name) == {f"{tmp_path / name}, row 0": Transcript(TRANSCRIPT)}


@pytest.mark.parametrize(("row", "complaint"), [
    ("{", "row 1: not JSON"),
    ("[]", "row 1: not a JSON object."),
    ('{"messages": []}', 'row 1: a row is {"messages": [...]} with at least one message.'),
    ('{"messages": [{"role": "user"}]}', "row 1: message 0 must have a role and a content, both text."),
    ('{"messages": [{"role": "user", "content": "?"}]}',
     "row 1: the last message must be the assistant's, not the user's."),
    ('{"messages": [7]}', "row 1: message 0 must have a role and a content, both text."),
    ('{"messages": [7], "tools": "7"}', 'row 1: tools must be a list of {"type": "function", "function": {"name":'),
    ('{"messages": [7], "tools": [{"type": "function", "function": {}}]}', "row 1: tools must be a list of"),
    ('{"messages": [{"role": "assistant", "content": "<result>4"}]}',
     "row 1: a <result> or </result> tag of the assistant's text has no partner."),
    ('{"messages": [{"role": "assistant", "content": "4"}]}', "row 1: Cannot apply chat template to an empty"),
    ('{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "4"}]}',
     "row 1: not valid Unicode"),
    ('{"messages": [{"role": "tool", "content": "?"}, {"role": "assistant", "content": "4"}]}', "row 1: no tools here"),
])  # fmt: skip
def test_a_bad_row_is_named_with_its_file(tmp_path, row, complaint):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"messages": TRANSCRIPT}) + "\n" + row + "\n")
    tokenizer = byte_tokenizer()
    refuses = "{% if messages[0]['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    tokenizer.chat_template = refuses + tokenizer.chat_template
    with pytest.raises(DataError) as error:
        load_examples(tokenizer, path, max_length=1000)
    assert str(error.value).startswith(f"{path}, {complaint}")


def test_long_transcripts_are_left_out_and_counted(tmp_path, capsys):
    long = [TRANSCRIPT[0], {"role": "assistant", "content": "x" * 500}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in (TRANSCRIPT, long)))
    examples = load_examples(byte_tokenizer(), path, max_length=300)
    assert examples == [tokenize_transcript(Chat(byte_tokenizer()), Transcript(TRANSCRIPT))]
    assert capsys.readouterr().out == "1 of 2 transcripts are longer than 300 tokens and are left out.\n"
    with pytest.raises(DataError, match="every transcript is longer than 10 tokens"):
        load_examples(byte_tokenizer(), path, max_length=10)
