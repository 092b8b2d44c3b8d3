"""Stop strings by token id, against a plain search in all of the text."""

from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rllib_arpo.engine.stop_strings import StopStrings, candidates
from tests.helpers.models import byte_tokenizer

TEXTS = [
    "<search> who wrote it </search>",
    "<result> x > 1 </result>\n\n",
    "<answer>答え：ünï</answer>\n",
    "a </s> b ** 2 // </python>",
]
STOP = ("</search>", "</answer>", "答え", "> ", "\n\n", " b")


def trained(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer with merges: "bytes" as Qwen's and Llama 3's, "spaces" as Llama 2's, with a token for each byte."""
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<|im_end|>", "</python>"]
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        alphabet, special = [], ["<unk>", "</python>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=special)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def ends(strings: StopStrings, stop: tuple[str, ...], token_ids: list[int]) -> bool:
    return token_ids[-1] in strings.candidates(stop) and strings.end(stop, token_ids)


def our_end(strings: StopStrings, token_ids: list[int], stop: tuple[str, ...]) -> int | None:
    return next((i for i in range(1, len(token_ids) + 1) if ends(strings, stop, token_ids[:i])), None)


def end_by_whole_texts(tokenizer, token_ids: list[int], stop: tuple[str, ...]) -> int | None:
    """Decodes all of the turn after every token."""
    before = tokenizer.encode("a b")
    skip = len(tokenizer.backend_tokenizer.decode(before))
    for i in range(1, len(token_ids) + 1):
        text = tokenizer.backend_tokenizer.decode(before + token_ids[:i], skip_special_tokens=False)[skip:]
        if any(string in text for string in stop):
            return i
    return None


@pytest.mark.parametrize("kind", ["bytes", "spaces"])
@pytest.mark.parametrize("with_noise", [False, True])
def test_a_turn_ends_where_one_that_reads_all_text_ends_it(kind, with_noise):
    """Texts cut into tokens anywhere; with noise, behind random tokens, of which many are no characters."""
    tokenizer, rng, found = trained(kind), np.random.default_rng(0), []
    strings = StopStrings(tokenizer)
    for i in range(300):
        text = "".join(rng.choice(list("".join(TEXTS)), 5)) + str(rng.choice(TEXTS))
        cuts = [0, *sorted(rng.integers(0, len(text), 12).tolist()), len(text)]
        token_ids = [t for a, b in pairwise(cuts) for t in tokenizer.encode(text[a:b])]
        if with_noise:
            token_ids = rng.integers(0, len(tokenizer), 60).tolist() + token_ids
        stop = tuple(rng.choice(STOP, 1 + i % 3, replace=False).tolist())
        found.append(our_end(strings, token_ids, stop))
        expected = end_by_whole_texts(tokenizer, token_ids, stop)
        assert found[-1] == expected, (stop, tokenizer.convert_ids_to_tokens(token_ids))
    assert 50 < sum(end is not None for end in found) < 290


def test_only_tokens_that_can_complete_a_string_are_looked_at():
    texts = [">", "h>", "</search>", "x</search>y", "h> ", "earch", "<", "search", "\ufffd", "", "x>"]
    assert candidates(texts, ["</search>"]) == {0, 1, 2, 3, 4}
    assert candidates(texts, ["答"]) == {8}


def test_tokens_beyond_the_tokenizer_have_no_text():
    strings, (a, b) = StopStrings(byte_tokenizer()), byte_tokenizer().encode("ab")
    assert ends(strings, ("ab",), [a, *[299] * 40, b])
    assert not ends(strings, ("ab",), [a, *[299] * 40])
    assert not ends(strings, ("ab",), [b, *[299] * 40, b])


def test_a_stop_string_that_nobody_can_find_is_refused():
    with pytest.raises(ValueError, match=r"^stop=\('a', ''\): a string is empty\.$"):
        StopStrings(byte_tokenizer()).candidates(("a", ""))
    with pytest.raises(ValueError, match=r"^stop=\('a',\): the model has no tokenizer\.$"):
        StopStrings(None).candidates(("a",))
