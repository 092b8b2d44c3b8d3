"""Answers in mathematics as text: cleaned, as exact numbers, and as quantities with units.

It needs only the standard library, since it runs in the environment and in the worker process for algebra.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from .brackets import closes_at_end, depth, split
from .spelling import in_ascii, spelled

#: The longest answer of MATH, GSM8K and the ARPO mixture has 83 characters.
MAX_CHARS = 1000
MAX_DEPTH = 20
#: Python reads no integers of more than 4,300 digits; honest answers are shorter.
MAX_NUMBER_CHARS = 200

_CURRENCIES = {
    "$": "dollar", "\\$": "dollar", "USD": "dollar", "€": "euro", "EUR": "euro", "£": "pound", "GBP": "pound",
    "¥": "yen", "₹": "rupee", "Rs": "rupee", "Rs.": "rupee",
}  # fmt: skip
_THOUSANDS = re.compile(r"[+-]?\d{1,3}([,' _])\d{3}(\1\d{3})*(\.\d+)?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)", re.ASCII)
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*) ?\\overline ?\{ ?(\d+) ?\}", re.ASCII)
_SCIENTIFIC = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:[eE]| ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?(\{)?)([+-]?\d{1,3})(?(2)\})", re.ASCII
)
_FRACTION = re.compile(
    r"([+-]?) ?(?:(\d+)(?: (?=\d)| ?(?=\\)))?"
    r"(?:(?P<a>-?\d+) ?/ ?(?P<b>\d+)|\\frac ?(?:\{ ?(?P<c>-?\d+) ?\}|(?P<e>\d)) ?(?:\{ ?(?P<d>-?\d+) ?\}|(?P<f>\d)))",
    re.ASCII,
)
_BASE = re.compile(r"([0-9A-Fa-f]+) ?_ ?(?:\{ ?(\d+) ?\}|(\d))", re.ASCII)

_UNIT_NAMES = {
    "meter": "m metre", "centimeter": "cm centimetre", "millimeter": "mm millimetre", "kilometer": "km kilometre",
    "inch": "in inches", "foot": "ft feet", "yard": "yd", "mile": "mi", "gram": "g gm", "kilogram": "kg",
    "milligram": "mg", "pound": "lb lbs", "ounce": "oz", "liter": "l litre", "milliliter": "ml millilitre",
    "gallon": "gal", "second": "s sec", "minute": "min", "hour": "h hr", "day": "", "week": "", "month": "",
    "year": "yr", "degree": "deg", "dollar": "usd", "euro": "eur", "cent": "", "unit": "", "radian": "rad",
    "mile per hour": "mph", "kilometer per hour": "kmh kmph",
}  # fmt: skip
_UNITS = {alias: name for name, aliases in _UNIT_NAMES.items() for alias in aliases.split()}
_MULTIPLES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
#: Words after a number that change its value, or make more than one value of it.
_NOT_UNITS = {*_MULTIPLES, "squared", "cubed", "factorial", "half", "halves", "third", "times", "plus", "minus", "mod"}
_NOT_UNITS |= {
    "", "or", "and", "not", "nor", "than", "if", "unless", "is", "isn", "are", "except", "but", "to", "until",
    "otherwise", "maybe", "perhaps", "double", "triple", "twice", "below", "under", "negative", "zero",
}  # fmt: skip
#: A part ("two fifths"), which is not a unit.
_ORDINAL = re.compile(
    r"thirds|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]+teen|[a-z]+tie|hundred|thousand)ths?"
)
_TEXT_UNIT = re.compile(r" ?\\text\{ ?([^{}]*[A-Za-z][^{}]*?) ?\}(?: ?\^ ?\{?(-?[1-9])\}?)?$")
_PLAIN_UNIT = re.compile(
    r"(?:(?<=[\d})])| )([A-Za-z]{2,}(?:[ /][A-Za-z]+)*|(?<= )[A-Za-z](?:/[A-Za-z]+)?)(?: ?\^ ?\{?([23])\}?)?$"
)
_PERCENT = re.compile(r" ?(?:\\?%|(?<![A-Za-z])(?:percent|pct)|\\text\{ ?(?:percent|pct|\\?%) ?\})$")
_CURRENCY = re.compile(r"^([+-]?) ?(?:US)?(\\?\$|[€£¥₹]|USD|EUR|GBP|Rs\.?) ?(?=[\d.+-])|(?<=[\d}]) ?(\\\$|[€£¥₹])$")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_END = re.compile(r"(?:\\[,;:! ]|\\\\|[.,;\s])+$")
_GOES_ON = re.compile(r"\.\d+ ?\.\.\.$")
_DELIMITERS = [(sign, sign) for sign in ("**", "*", "`", "__", "$$", "$")] + [(r"\(", r"\)"), (r"\[", r"\]")]
_TEXT = re.compile(r"\\text\{ ?([^{}]*)\}")
#: "(C)", "C)", "Option C", "C: because of this"; "A and B".
_CHOICE = re.compile(
    r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer):? )?\(?([A-H])"
    r"(?:\)|(?:\):?|:) ?(?!.*\b(?:or|not|[A-H])\b)[A-Za-z]{3,}(?: [A-Za-z]+)*)?"
)
_CHOICES = re.compile(r"\(?[A-H]\)?(?:(?:,? ?(?:and|or) |, ?)\(?[A-H]\)?)+")
_NOTHING = re.compile(r"(?:there (?:is|are) )?no (?:real )?solutions?|(?:the )?empty set|(all real(?: number)?s)", re.I)
#: The open ends of "]0,1[".
_OPENS, _CLOSES = re.compile(r"(^|\\cup ?|[\\in=] ?)\]"), re.compile(r"\[($| ?\\cup)")


def clean(text: str, log: str = r"\ln") -> str | None:
    """`text` in the spelling that the other functions read; None if it is not an answer in mathematics.

    Such a text is too long or too deeply nested, or has control characters, letters that occur in no formula, or a
    `\\boxed` inside.

    Args:
        log: see `spelled`.
    """
    if len(text) > MAX_CHARS:
        return None
    text = in_ascii(text).strip()
    if "boxed" in text or "fbox" in text:
        return None
    text = text if _GOES_ON.search(text) else _END.sub("", text)
    for begin, end in _DELIMITERS:
        if len(text) > len(begin + end) and text.startswith(begin) and text.endswith(end) and text[-2:] != "\\$":
            text = text[len(begin) : -len(end)]
    text = spelled(text, log)
    if any(c not in _CURRENCIES and not " " <= c <= "~" for c in text) or depth(text) > MAX_DEPTH:
        return None
    text = _without_braces(re.sub(r"(?<!\\)\$(?![\d.])", " ", text).strip(" =").rstrip(".,; "))
    words = _TEXT.sub(r"\1", text)
    if choice := _CHOICE.fullmatch(words):
        return choice[1]
    if named := _NOTHING.fullmatch(words.strip()):
        return r"\mathbb{R}" if named[1] else r"\emptyset"
    text = words if _CHOICES.fullmatch(words) else text
    return _OPENS.sub(r"\1(", _CLOSES.sub(r")\1", text))


def as_number(text: str) -> Fraction | None:
    """The exact value of an integer, a decimal, a fraction ("1/2", "\\frac12"), a mixed number ("1 1/2",
    "1\\frac{1}{2}") or a number in scientific notation, in the spelling of `clean`; None for anything else."""
    if len(text) > MAX_NUMBER_CHARS:
        return None
    if _THOUSANDS.fullmatch(text):
        text = re.sub("[,' _]", "", text)
    text = re.sub(r"^([+-]) ", r"\1", text)
    if match := _REPEATING.fullmatch(text):
        return _repeating(match[1], match[2] or "", match[3], match[4])
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if match := _SCIENTIFIC.fullmatch(text):
        return Fraction(match[1]) * Fraction(10) ** int(match[3])
    match = _FRACTION.fullmatch(text)
    if not match:
        return None
    above = int(match["a"] or match["c"] or match["e"])
    below = int(match["b"] or match["d"] or match["f"])
    if below == 0 or (match[2] and (above < 0 or below < 0)):
        return None
    value = int(match[2] or 0) + Fraction(above, below)
    return -value if match[1] == "-" else value


def _repeating(sign: str, whole: str, fixed: str, repeated: str) -> Fraction:
    """The value of a repeating decimal."""
    tail = Fraction(int(repeated), 10 ** len(repeated) - 1)
    value = (int(whole + fixed or "0") + tail) / 10 ** len(fixed)
    return -value if sign == "-" else value


@dataclass(frozen=True, slots=True)
class Quantity:
    """One value.

    Attributes:
        text: without unit, percent sign and base.
        number: its exact value, if it is a plain number.
        unit: in one spelling ("centimeter^2"); "" if there is none.
        percent: whether it has a percent sign.
        base: of the number system ("8"); "" if none is written.
    """

    text: str
    number: Fraction | None
    unit: str = ""
    percent: bool = False
    base: str = ""


def read_quantity(text: str) -> Quantity:
    """Splits off unit, percent sign and base."""
    if match := _BASE.fullmatch(text):
        return Quantity(match[1], as_number(match[1]), base=match[2] or match[3])
    unit, factor = "", 1
    if match := _CURRENCY.search(text):
        unit = _CURRENCIES[match[2] or match[3]]
        text = text[: match.start()] + (match[1] or "") + text[match.end() :]
    percent = _PERCENT.search(text)
    if percent and percent.start():
        text = text[: percent.start()]
    elif text.endswith("^\\circ") and not _TRIGONOMETRY.search(text):
        unit, text = "degree", text[: -len("^\\circ")].strip()
    else:
        text, factor, written = _split_unit(text)
        unit = written or unit
    number = as_number(text)
    number = number if number is None else number * factor
    if number is None and factor != 1:
        text = rf"{factor} \cdot ({text})"
    return Quantity(text, number, unit, bool(percent))


def _split_unit(text: str) -> tuple[str, int, str]:
    """(`text` without its unit, by how much a word such as "million" multiplies it, the unit)."""
    match = _TEXT_UNIT.search(text)
    if match is None:
        match = _PLAIN_UNIT.search(text)
        known = match and (match[1] in _UNITS or match[1].lower().removesuffix("s") in _UNIT_NAMES)
        if match and not known and (len(match[1]) < 3 or as_number(text[: match.start()].strip()) is None):
            match = None
    if match is None or not text[: match.start()].strip():
        return text, 1, ""
    words = re.findall(r"[a-z][a-z0-9]*(?:\^-?\d)?|\d+|/", match[1].lower())
    factor = 1
    while words and words[0] in _MULTIPLES:
        factor *= _MULTIPLES[words.pop(0)]
    plain = {word.rstrip("^-0123456789") for word in words}  # "" for a number
    is_unit = not plain & _NOT_UNITS and not any(map(_ORDINAL.fullmatch, plain))
    if not is_unit or text[match.start() - 1 : match.start()] in ("\\", "_", "^"):
        return text, 1, ""
    return text[: match.start()].strip(), factor, _unit_name(words, match[2] or "")


def _unit_name(words: list[str], power: str) -> str:
    names = []
    for word in words:
        if word in _POWERS:
            power = str(_POWERS[word])
        else:
            single = word.removesuffix("s") if len(word) > 2 else word
            names.append({"/": "per"}.get(word) or _UNITS.get(word) or _UNITS.get(single) or single)
    return " ".join(names) + (f"^{power}" if power and names else "")


def _without_braces(text: str) -> str:
    """`text` without redundant braces around all of it, and without brackets around a number."""
    while text.startswith("{") and closes_at_end(text) and len(split(text[1:-1], re.compile(","))) == 1:
        text = text[1:-1].strip()
    in_brackets = text.startswith("(") and text.endswith(")") and as_number(text[1:-1].strip()) is not None
    return text[1:-1].strip() if in_brackets and "," not in text else text
