"""Families of tokenizers: what a model reads, piece by piece, is what its tokenizer makes of the whole text."""

from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from rllib_arpo.envs.protocols import PROTOCOLS
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.protocols.protocol import CallRequest
from rllib_arpo.envs.question import Question

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<unk>"]
TEXTS = [
    "Question: What is the price of the old lamp? Answer: <search> lamp </search> <result> 12 </result> It is."
] * 9
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def begins(text: str = "<s> $A") -> Callable[[Tokenizer], None]:
    """A post-processor that adds special tokens, as `tokenizer(text)` does by itself."""

    def add(tokenizer: Tokenizer) -> None:
        ids = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
        tokenizer.post_processor = processors.TemplateProcessing(single=text, special_tokens=ids)

    return add


def byte_level(prefix: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, trainers.BpeTrainer, initial_alphabet=alphabet, vocab_size=300)


def metaspace(scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trained(tokenizer, trainers.BpeTrainer, special=BYTES, vocab_size=310)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return tokenizer


def prepended() -> Tokenizer:
    """As the first Llamas': the marker is a normaliser's."""
    tokenizer = metaspace("always")
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(strip)
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\n", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return trained(tokenizer, trainers.UnigramTrainer, unk_token="<unk>", vocab_size=70)


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return trained(tokenizer, trainers.WordPieceTrainer, vocab_size=120)


def trained(tokenizer: Tokenizer, trainer: Callable, special: list[str] | None = None, **options) -> Tokenizer:
    tokens = [*SPECIAL, *(special or [])]
    tokenizer.train_from_iterator(TEXTS, trainer(special_tokens=tokens, show_progress=False, **options))
    return tokenizer


#: Name -> the tokenizer, and what it adds to a text.
FAMILIES = {
    "GPT-2, Qwen": (byte_level, None),
    "Llama 3": (byte_level, begins()),
    "RoBERTa": (lambda: byte_level(prefix=True), begins("<s> $A </s>")),
    "Llama 2": (prepended, begins()),
    "Mistral": (lambda: metaspace("first"), begins()),
    "Gemma": (lambda: metaspace("never"), begins()),
    "Phi 3": (lambda: metaspace("always"), begins()),
    "T5": (unigram, begins("$A </s>")),
    "BERT": (word_piece, begins("<s> $A </s>")),
}


@pytest.fixture(params=FAMILIES)
def tokenizer(request) -> PreTrainedTokenizerFast:
    make, adds = FAMILIES[request.param]
    backend = make()
    if adds is not None:
        adds(backend)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="<|im_end|>", unk_token="<unk>",
        additional_special_tokens=["<|im_start|>"], clean_up_tokenization_spaces=False,
    )  # fmt: skip


def whole(tokenizer: PreTrainedTokenizerFast, text: str, bos: bool) -> list[int]:
    """What the tokenizer makes of a text that is not at its end."""
    ids = tokenizer(text, add_special_tokens=bos)["input_ids"]
    return ids[:-1] if bos and ids[-1] == tokenizer.convert_tokens_to_ids("</s>") else ids


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["plain", "template"])
def test_a_conversation_has_the_tokens_of_its_text(tokenizer, template):
    tokenizer.chat_template = template
    chat = Chat(tokenizer)
    protocol = PROTOCOLS["tags"]({}, chat)
    question = Question("q", (("system", "Be short."), ("user", "What is the lamp?")), ("12",), "qa", "row 0")
    turns = [" <search> lamp </search>", "It is old.<|im_end|>"]
    pieces = [protocol.prompt(chat, question), chat.encode(turns[0])]
    pieces += [protocol.response(chat, CallRequest("search", "lamp"), "12", pieces[-1]), chat.encode(turns[1])]
    pieces += [protocol.reply(chat, "What is the price?", pieces[-1])]
    said = f"{turns[0]}\n<result> 12 </result>\n{turns[1]}"
    if template is None:
        text = f"Be short.\n\nQuestion: What is the lamp?\n\nAnswer:{said}\n\nQuestion: What is the price?\n\nAnswer:"
    else:
        text = "<|im_start|>system: Be short.<|im_end|><|im_start|>user: What is the lamp?<|im_end|>"
        text += f"<|im_start|>assistant:{said}<|im_start|>user: What is the price?<|im_end|><|im_start|>assistant:"
    assert np.concatenate(pieces).tolist() == whole(tokenizer, text, bos=template is None)


def test_a_shielded_text_has_no_marker_where_it_is_cut(tokenizer):
    chat = Chat(tokenizer)
    tokens = chat.encode_prompt(chat.shield("the <|im_end|> lamp")).tolist()
    assert not {tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|im_start|>")} & {*tokens}
    pieces = tokenizer.convert_ids_to_tokens(tokens)
    assert "".join(pieces).count("▁") <= 3 and sum(piece.startswith("Ġ") for piece in pieces) <= 3
