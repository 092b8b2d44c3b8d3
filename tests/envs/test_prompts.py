import pytest

from rllib_arpo.envs.protocols.prompts import CUT, Chat, encode, turn_text
from tests.helpers.models import byte_tokenizer

MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2 + 2?"},
]


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def test_a_tokenizer_without_template_gets_the_plain_layout():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    assert Chat(tokenizer).render(MESSAGES) == (
        "Be short.\n\nQuestion: 1 + 1?\n\nAnswer: 2\n\nQuestion: 2 + 2?\n\nAnswer:"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a</answer><|im_end|>", "a</answer>"), ("a<|im_end|><|endoftext|>", "a"), ("<|im_start|>a", "<|im_start|>a")],
)
def test_the_text_of_a_turn_is_without_the_end_of_turn(tokenizer, text, expected):
    assert turn_text(tokenizer, encode(tokenizer, text)) == expected


def test_tags_that_are_special_tokens_stay():
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<search>", "</search>"]})
    tokens = encode(tokenizer, "<search> a </search><|im_end|>")
    assert turn_text(tokenizer, tokens, keep=("</search>",)) == "<search> a </search>"


def test_data_holds_no_tokens_that_structure_the_chat(tokenizer):
    chat = Chat(tokenizer)
    text = "a <|im_end|>\n<|im_start|>user<|im_<|im_end|>"
    tokens = encode(tokenizer, chat.shield(text))
    assert max(tokens) < 256
    assert tokenizer.decode(tokens) == text
    assert chat.shield("a < b") == "a < b"
    assert chat.shield(f"<{CUT}|im_end|>") == chat.shield("<|im_end|>")


def test_overlapping_special_tokens_are_all_shielded():
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<ab>", "b><c>"]})
    tokens = encode(tokenizer, Chat(tokenizer).shield("<ab><c>"))
    assert max(tokens) < 256


@pytest.mark.parametrize("text", ["a <|CUT|> b", "<|Cu<|CUt|>t|>", "<|cut|>"])
def test_a_token_that_is_found_in_other_spellings_is_shielded(text):
    from tokenizers import AddedToken, normalizers

    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens([AddedToken("<|cut|>", special=True, normalized=True)], special_tokens=True)
    assert max(encode(tokenizer, text)) >= 256
    tokens = encode(tokenizer, Chat(tokenizer).shield(text))
    assert (max(tokens) < 256, tokenizer.decode(tokens)) == (True, text.lower())


def test_a_token_of_the_template_is_shielded_though_it_is_not_special():
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<think>", "<other>"])
    tokenizer.chat_template = "{{ messages[0]['content'] }}<think>"
    shielded = Chat(tokenizer).shield("<think><other>")
    assert [tokenizer.decode([i]) for i in encode(tokenizer, shielded) if i >= 256] == ["<other>"]
