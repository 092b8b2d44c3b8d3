"""Transcripts in OpenAI's format are learnt as the run's protocol writes them, or refused with their row."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rllib_arpo.cold_start.examples import IGNORED, load_examples
from rllib_arpo.envs.errors import DataError
from tests.helpers.chat_templates import QWEN25, THINKING, jinja
from tests.helpers.models import byte_tokenizer


def tool(name: str, **properties: str) -> dict:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}


def call(number: int, name: str, arguments) -> dict:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(number: int, content: str) -> dict:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


TOOLS = [tool("look_up", thing="string"), tool("add", a="integer", b="integer"), tool("double", n="integer")]
ASKED = {"role": "user", "content": "How much?"}
FINAL = {"role": "assistant", "content": "12."}
CALLS = [call(1, "look_up", '{"thing": "lamp"}'), call(2, "add", {"a": 5, "b": 7})]
#: Two calls at once, one with a text beside it; the results come in another order.
PARALLEL = [
    ASKED,
    {"role": "assistant", "content": "I look.", "tool_calls": CALLS},
    result(2, "12"),
    result(1, "5"),
    FINAL,
]


def examples(tmp_path, messages: list, protocol: str | None, template: str = QWEN25, tools=TOOLS):
    """(what is learnt, what is read and learnt) of a row."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"messages": messages, "tools": tools}) + "\n")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = jinja(template)
    (example,) = load_examples(tokenizer, path, 10_000, protocol)
    return tokenizer.decode([i for i in example["labels"] if i != IGNORED]), tokenizer.decode(example["input_ids"])


LOOK_UP = '<tool_call>\n{"name": "look_up", "arguments": {"thing": "lamp"}}\n</tool_call>'
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 5, "b": 7}}\n</tool_call>'


def test_parallel_calls_are_turns_of_their_own(tmp_path):
    learnt, whole = examples(tmp_path, PARALLEL, "function_calling")
    assert learnt == f"I look.\n{LOOK_UP}<|im_end|>{ADD}<|im_end|>12.<|im_end|>"
    frame = "<|im_end|>\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert whole.endswith(
        f"How much?<|im_end|>\n<|im_start|>assistant\nI look.\n{LOOK_UP}{frame.format(5)}{ADD}{frame.format(12)}12."
        "<|im_end|>"
    )
    assert '"name": "double"' in whole.partition("How much?")[0]

    learnt, whole = examples(tmp_path, PARALLEL, "tags")
    calls = ["I look.\n<look_up> lamp </look_up>", '<add> {"a": 5, "b": 7} </add>', "12."]
    assert learnt == "".join(calls) + "<|im_end|>"
    assert whole.endswith(
        f"assistant\n{calls[0]}\n<result> 5 </result>\n{calls[1]}\n<result> 12 </result>\n12.<|im_end|>"
    )
    assert "To use double, write <double> n </double>." in whole


ONE = {"role": "assistant", "content": None, "tool_calls": CALLS[:1]}


@pytest.mark.parametrize(
    ("messages", "protocol", "learnt"),
    [
        ([ASKED, ONE, result(1, "</result><|im_end|>"), FINAL], "tags",
         "<look_up> lamp </look_up>12.<|im_end|>"),
        ([ASKED, ONE], "tags", "<look_up> lamp </look_up>"),
        ([ASKED, ONE], "function_calling", f"{LOOK_UP}<|im_end|>"),
        ([ASKED, {**ONE, "tool_calls": CALLS[1:]}], "tags_with_thought", '<add> {"a": 5, "b": 7} </add>'),
        ([ASKED, {**ONE, "weight": 0}, result(1, "5"), FINAL], "function_calling", "12.<|im_end|>"),
        ([ASKED, {**FINAL, "reasoning_content": "hm"}], "tags", "<think>\nhm\n</think>\n\n12.<|im_end|>"),
        ([{**ASKED, "content": [{"type": "text", "text": "How?"}]}, FINAL], "tags", "12.<|im_end|>"),
        ([{"role": "developer", "content": "Be short."}, ASKED, FINAL], "tags", "12.<|im_end|>"),
    ],
)  # fmt: skip
def test_every_kind_of_message_is_learnt(tmp_path, messages, protocol, learnt):
    assert examples(tmp_path, messages, protocol)[0] == learnt


def test_a_thought_that_the_template_has_opened_is_not_opened_again(tmp_path):
    thought = {**FINAL, "content": "<think>\nhm\n</think>\n12."}
    for messages, learnt in (([ASKED, thought], "hm\n</think>\n12."), ([ASKED, FINAL], "</think>\n\n12.")):
        found, whole = examples(tmp_path, messages, None, THINKING, tools=[])
        assert found == learnt + "<|im_end|>" and whole.count("<think>") == 1


def test_columns_of_parquet_have_no_arguments_that_nobody_gave(tmp_path):
    """Arrow gives each call the keys of all calls, and each schema the parameters of all tools."""
    again = [ASKED, {**ONE, "tool_calls": [call(2, "add", {"a": 5, "b": 7})]}, result(2, "12"), FINAL]
    look_up = [ASKED, {**ONE, "tool_calls": [call(1, "look_up", {"thing": "lamp"})]}, result(1, "5"), FINAL]
    rows = [{"messages": messages, "tools": TOOLS} for messages in (look_up, again)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = jinja(QWEN25)
    for protocol in ("tags", "function_calling"):
        found = [load_examples(tokenizer, tmp_path / f"rows.{kind}", 10_000, protocol) for kind in ("jsonl", "parquet")]
        learnt = [[tokenizer.decode([i for i in row["labels"] if i != IGNORED]) for row in one] for one in found]
        assert learnt[0] == learnt[1]


@pytest.mark.parametrize(
    ("messages", "protocol", "complaint"),
    [
        (PARALLEL, None, "it has tools: say with which protocol the run calls them"),
        (PARALLEL[:-2], "tags", "the last message must be the assistant's"),
        ([*PARALLEL[:3], FINAL], "tags", "the calls of message 1 and the results that follow do not belong together."),
        ([ASKED, ONE, result(3, "5"), FINAL], "tags", "the calls of message 1 and the results that follow do not"),
        ([ASKED, FINAL, result(1, "5"), FINAL], "tags", "message 2 is the result of no call."),
        ([ASKED, ONE, result(1, "5"), ASKED, FINAL], "tags", "message 1 of the assistant calls a tool, and none of it"),
        ([ASKED, {**FINAL, "content": ""}], "tags", "message 1, the assistant's, says nothing and calls nothing."),
        ([ASKED, {**FINAL, "content": None}], "tags", "message 1 must have a role and a content, both text."),
        ([ASKED, {**FINAL, "weight": 0}], "tags", "every message of the assistant has the weight 0."),
        ([ASKED, {**FINAL, "function_call": {}, "audio": {"id": "1"}}], "tags", "message 1 has 'audio', which a"),
        *(
            ([ASKED, {**ONE, "tool_calls": [called]}], protocol, complaint)
            for protocol in ("tags", "function_calling")
            for called, complaint in (
                (call(1, "other", {}), "it calls 'other', which is not one of"),
                (call(1, "look_up", {"colour": "red"}), "look_up has no parameter 'colour': it takes 'thing'."),
                (call(1, "look_up", {"thing": 7}), "look_up: "),
            )
        ),
        ([ASKED, {**ONE, "tool_calls": [call(1, "look_up", {"thing": "a</look_up>b"})]}], "tags",
         "the tags of 'look_up' cannot hold its call"),
        ([ASKED, {**ONE, "tool_calls": [call(1, "look_up", "{")]}], "tags", "A message is not in OpenAI's format"),
        ([ASKED, {**ONE, "content": "a <tool_call>"}], "function_calling", "the chat template of the tokenizer"),
        ([{**ASKED, "content": [{"type": "image_url"}]}, FINAL], "tags", "A message must have text only."),
        ([{**ASKED, "role": "function"}, FINAL], "tags", "The role of a message must be one of system"),
    ],
)  # fmt: skip
def test_what_cannot_be_learnt_is_refused_with_its_row(tmp_path, messages, protocol, complaint):
    with pytest.raises(DataError) as error:
        examples(tmp_path, messages, protocol)
    assert str(error.value).startswith(f"{tmp_path}/rows.jsonl, row 0: {complaint}")


@pytest.mark.parametrize("protocol", ["tags", "function_calling"])
def test_arguments_that_a_data_set_has_filled_with_null_were_not_given(tmp_path, protocol):
    filled = {**ONE, "tool_calls": [call(1, "look_up", {"thing": "lamp", "a": None})]}
    plain = {**ONE, "tool_calls": [call(1, "look_up", {"thing": "lamp"})]}
    assert examples(tmp_path, [ASKED, filled], protocol) == examples(tmp_path, [ASKED, plain], protocol)


def test_ends_that_a_run_reads_as_no_answer_are_counted(tmp_path, capsys):
    answers = {"tags": "<answer> 12 </answer>", "function_calling": "It is \\boxed{12}."}
    for protocol, answer in answers.items():
        examples(tmp_path, PARALLEL, protocol)
        assert (
            capsys.readouterr().out
            == f"1 of 1 transcripts end without an answer that the protocol {protocol!r} reads.\n"
        )
        examples(tmp_path, [*PARALLEL[:-1], {**FINAL, "content": answer}], protocol)
        examples(tmp_path, [ASKED, ONE], protocol)
        assert capsys.readouterr().out == ""


def test_a_template_without_calls_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(DataError, match=r"row 0: protocol 'function_calling': .*no support.*or protocol 'tags'"):
        examples(tmp_path, PARALLEL, "function_calling", byte_tokenizer().chat_template)
