"""Answers to questions of knowledge: exact match and token F1 over aliases (SQuAD's measures)."""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Sequence

from rllib_arpo.envs.support.boxes import boxes

#: "a" at the end is a name: "Vitamin A".
_ARTICLES = re.compile(r"\b(an|the|a(?! *$))\b")
_LATEX_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|tt|sf|sc)?|mbox|math(?:rm|bf|it|sf|tt)|emph|underline)\s*\{([^{}]*)\}")
#: A sign that LaTeX reads as its own, and its blanks.
_LATEX_SIGN, _LATEX_BLANK = re.compile(r"\\([#$%&_{}])"), re.compile(r"\\[ ,;:!]|~")
_SPELLINGS = str.maketrans(
    {
        **dict.fromkeys("‘’‛′`´", "'"),
        **dict.fromkeys("“”„‟″«»", '"'),
        **dict.fromkeys("‐‑‒–—―−", "-"),
        **dict.fromkeys("®©™", ""),
    }
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NO_ZERO = re.compile(r"(?<![\w.])\.(?=\d)")
#: From one number to another, or minus: "1914 - 1918".
_SPACED_DASH = re.compile(r"(?<=\d)\s+-\s+(?=\d)")
#: "early- life", as tokenizers of treebanks leave it.
_BROKEN_WORD = re.compile(r"(?<=[^\W\d])-\s+(?=[^\W\d])")
#: Chinese and Japanese have no blanks between words.
_UNSPACED = r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_CHARACTER, _BETWEEN = re.compile(_UNSPACED), re.compile(rf"(?<={_UNSPACED})\s+(?={_UNSPACED})")
#: Punctuation; the groups are what stays, since it tells names and numbers apart: between two digits (3.5, 2-1, 10^6),
#: a sign before one (-5, <5), and plus, minus, star and sharp after a letter or digit (C++, A-, A*, C#, 50+).
_PUNCTUATION = re.compile(
    r"((?<=\d)[!-/:-@\[-`{-~]++(?=\d))|(?<!\w)([-<>])(?=\d)|(?<=\w)([-+*#]++(?!\w)|\+\++)|[!-/:-@\[-`{-~]"
)
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})
#: More than this share of an answer's words must be right, so an answer that names two candidates earns nothing.
MIN_PRECISION = 0.5


def exact_match(answer: str, gold: Sequence[str]) -> float:
    """1 if `answer` equals one of the aliases in `gold` after `normalize_text`, otherwise 0."""
    return float(any(normalize_text(answer) == normalize_text(_unboxed(alias)) for alias in gold))


def bounded_f1(answer: str, gold: Sequence[str]) -> float:
    """The best token F1 of `answer` over the aliases in `gold`; 0 unless more than half of its words are right.

    Plain F1 pays for lists: "Paris London" would earn 0.67 whichever of the two is right. With this bound no answer can
    earn anything against two golds that have no word in common.
    """
    return max((token_f1(answer, alias, MIN_PRECISION) for alias in gold), default=0.0)


def _unboxed(alias: str) -> str:
    return (boxes(alias) or [alias])[-1]


def token_f1(answer: str, gold: str, min_precision: float = 0.0) -> float:
    """Token F1 after `normalize_text`, in [0, 1]; a yes/no answer counts only as a whole (as HotpotQA has it).

    Tokens are words, and the characters of Chinese and Japanese (as CMRC and DRCD have it).

    Args:
        min_precision: 0 unless the share of the answer's words that are right is greater.
    """
    ours, theirs = normalize_text(answer), normalize_text(_unboxed(gold))
    if ours != theirs and (ours in _CLOSED_ANSWERS or theirs in _CLOSED_ANSWERS):
        return 0.0
    our_words, their_words = (_CHARACTER.sub(r" \g<0> ", text).split() for text in (ours, theirs))
    common = (collections.Counter(our_words) & collections.Counter(their_words)).total()
    if common <= min_precision * len(our_words):
        return 0.0
    return 2 * common / (len(our_words) + len(their_words))


def normalize_text(text: str) -> str:
    """SQuAD's normalisation: lower case, without punctuation, articles and repeated blanks (Rajpurkar et al., 2016).

    It differs from SQuAD's in four ways. It keeps the characters that change a number or a name ("3.5", "1/2", "2-1",
    "-5", "C++", "A-"). It reads LaTeX's `\\text{}` and `\\#`. Quotation marks, dashes, accents, digits and wide letters
    have one spelling each. A text of nothing but punctuation and articles is only lowered: "The The" is not "!".
    """
    plain = _LATEX_BLANK.sub(" ", _LATEX_SIGN.sub(r"\1", _LATEX_TEXT.sub(r"\1", text))).strip()
    if plain.startswith("*") and plain.endswith("*"):  # Markdown's emphasis.
        plain = plain.strip("*")
    usual = unicodedata.normalize("NFC", _compatible(unicodedata.normalize("NFC", plain)))
    lowered = _BROKEN_WORD.sub("-", usual.translate(_SPELLINGS).casefold())
    numbers = _SPACED_DASH.sub("-", _NO_ZERO.sub("0.", _THOUSANDS.sub("", lowered)))
    bare = _PUNCTUATION.sub(lambda match: match[1] or match[2] or match[3] or "", numbers)
    return _BETWEEN.sub("", " ".join(_ARTICLES.sub(" ", bare).split())) or " ".join(lowered.split())


def _compatible(text: str) -> str:
    """`text` with the usual spelling of each character, but for raised, lowered and circled ones ("x²" is not "x2")."""
    return text if text.isascii() else "".join(_usual(character) for character in text)


def _usual(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category in ("Sc", "Cf") and not character.isascii():  # A currency, as "$"; what is not seen.
        return ""
    if category[0] == "P" and ord(character) not in _SPELLINGS:
        usual = unicodedata.normalize("NFKC", character)
        return usual if usual.isascii() else " "  # Such as "。" and "《".
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if kind == "<fraction>":
        return " " + unicodedata.normalize("NFKC", character).replace("\u2044", "/")
    return character if kind in ("<super>", "<sub>", "<circle>") else unicodedata.normalize("NFKC", character)
