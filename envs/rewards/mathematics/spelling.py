"""One spelling for formulas: for LaTeX's many commands, Unicode's characters, and what SymPy and Python print.

It needs only the standard library, like `text`.
"""

from __future__ import annotations

import itertools
import re
import unicodedata

from .brackets import closing, split

_SIGNS = {
    "-": "−–‐", "/": "÷∕⁄", ":": "∶", "'": "′’", "|": "∣", "(": "⟨〈", ")": "⟩〉", "=": "≈", "sqrt": "√", "cbrt": "∛",
    r"\times ": "×", r"\cdot ": "·⋅∙", r"\infty ": "∞", r"^\circ": "°", r"\le ": "≤⩽", r"\ge ": "≥⩾", r"\ne ": "≠",
    r"\pm ": "±", r"\mp ": "∓", r"\cup ": "∪", r"\cap ": "∩", r"\in ": "∈", r"\setminus ": "∖", r"\emptyset ": "∅",
    r"\text{ or }": "∨", r"\text{ and }": "∧", r"\lfloor ": "⌊", r"\rfloor ": "⌋", r"\lceil ": "⌈", r"\rceil ": "⌉",
    r"\sum ": "∑", r"\prod ": "∏", r"\int ": "∫", r"\mathbb{R}": "ℝ", r"\mathbb{Z}": "ℤ", r"\mathbb{Q}": "ℚ",
    r"\mathbb{N}": "ℕ", r"\mathbb{C}": "ℂ", " cent": "¢", r"\angle ": "∠",
}  # fmt: skip
_CHARACTERS = {character: latex for latex, characters in _SIGNS.items() for character in characters}
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (?:FINAL )?(\w+)")

#: A command -> its other names.
_NAMES = {
    "": """left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle scriptstyle
        limits nolimits bf rm it sf tt bm boldsymbol underline mathbf mathit mathsf mathtt ensuremath""",
    " ": "quad qquad enspace thinspace",
    r"\text": "textrm textbf textit textsf texttt textsc textnormal emph mbox hbox mathrm operatorname",
    r"\frac": "dfrac tfrac cfrac", r"\binom": "dbinom tbinom", r"\{": "lbrace", r"\}": "rbrace",
    "|": "lvert rvert vert mid", "(": "langle", ")": "rangle", "<": "lt", ">": "gt",
    "=": "approx", ":": "colon", "£": "pounds", "€": "euro",
    r"\le ": "le leq leqslant", r"\ge ": "ge geq geqslant", r"\ne ": "ne neq", r"^\circ": "degree",
    r"\emptyset ": "varnothing", r"\ldots": "dots cdots dotsc dotsb", r"\text{ or }": "lor vee",
    r"\text{ and }": "land wedge",
}  # fmt: skip
_COMMANDS = {name: command for command, names in _NAMES.items() for name in names.split()}
_COMMAND = re.compile(r"\\\\|\\([a-zA-Z]+)")

#: What SymPy and Python print -> LaTeX: #1 and #2 are the arguments in brackets, #* is all of them.
_FUNCTIONS = {
    "sqrt": r"\sqrt{#1}", "cbrt": r"\sqrt[3]{#1}", "root": r"\sqrt[#2]{#1}", "exp": "e^{#1}", "^": "^{#1}",
    "log10": r"\log_{10}(#1)", "log2": r"\log_{2}(#1)", "factorial": "(#1)!", "gamma": r"\Gamma(#1)",
    "floor": r"\lfloor #1\rfloor ", "ceiling ceil": r"\lceil #1\rceil ", "abs Abs fabs": "|#1|",
    "binomial comb": r"\binom{#1}{#2}", "Rational Fraction": r"\frac{#1}{#2}", "Pow": "(#1)^{#2}",
    "Interval": "[#*]", "Interval.open": "(#*)", "Interval.Lopen": "(#*]", "Interval.Ropen": "[#*)",
    "FiniteSet": r"\{#*\}", "Complement": r"#1\setminus #2", "Union Intersection And Or": "#*", "Matrix array": "#*",
    "Eq": "#1=#2", "Ne": r"#1\ne #2", "conjugate": r"\overline{#1}", "Point2D Point3D": "(#*)",
    "Integer Float Decimal mpf float64 int64 Poly tensor": "#1", "max Max": r"\max(#*)", "min Min": r"\min(#*)",
    **{f"a{name} arc{name}": rf"\arc{name}(#1)" for name in ("sin", "cos", "tan", "sec", "csc", "cot")},
    **{f"a{name} arc{name}": rf"\arc{name}(#1)" for name in ("sinh", "cosh", "tanh")},
}  # fmt: skip
_PRINTED = {name: latex for names, latex in _FUNCTIONS.items() for name in names.split()}
_CALLED = "|".join(re.escape(name) for name in sorted({*_PRINTED, "log"} - {"^"}, key=len, reverse=True))
_CALL = re.compile(rf"(?:(?<![\\A-Za-z_.])(?:(?:sympy|sp|np|numpy|math)\.)?({_CALLED})|\^) ?\(")
_COMMA = re.compile(",")
_ROW = re.compile(r"\[([^\[\]]*)\]")
_ROWS = re.compile(r"\[ ?(\[[^\[\]]*\](?:,? ?\[[^\[\]]*\])*) ?\]")
_JOINED = {"Union": r"\cup ", "Intersection": r"\cap ", "And": r"\text{ and }", "Or": r"\text{ or }"}

_PLAIN = (
    "sqrt|pi|sin|cos|tan|cot|sec|csc|sinh|cosh|tanh|arcsin|arccos|arctan|log|ln|alpha|beta|gamma|delta|epsilon|zeta"
    "|theta|lambda|mu|rho|sigma|tau|phi|psi|omega"
)


def _word(names: str) -> str:
    """The pattern of one of the names that is a word of its own, and not a command."""
    return rf"(?<![\\a-zA-Z])({names})(?![a-zA-Z])"


def _compiled(*spellings: tuple[str, str]) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), replacement) for pattern, replacement in spellings]


_BEFORE_COMMANDS = _compiled(
    # Vectors in bold.
    (r"(?<![A-Za-z])(?:\{\\bf ([A-Za-z]) ?\}|\\(?:mathbf|boldsymbol|bm) ?\{ ?([A-Za-z]) ?\})", r"\1\2"),
    (r"\{\\(?:rm|bf|it|sf|tt) ([^{}]*)\}", r"\\text{\1}"),
    (r"\\(?:textcolor|color|hspace) ?\{[^{}]*\}", ""),
)
_BEFORE_CALLS = _compiled(
    (r"smallmatrix", "matrix"),
    # Spaces.
    (r"(?<!\\)\\!\s*", ""), (r"(?<!\\)\\[,;: ]|~", " "), (r"\s+", " "),
    # Python's dicts.
    (r"(?:(?<=, )|(?<!\\)(?<=\{)(?<!\\text\{))([A-Za-z]\w*): (?=[^{}<>|\\]*\})", r"\1="),
    # Functions.
    (rf"\\text ?\{{ ?({_PLAIN}) ?\}}", r"\1"),
    (r"\\sqrt ?\(", "sqrt("), (r"(?<!\\)(sqrt|cbrt) ?(\d+(?:\.\d+)?|[a-z](?![a-z])|\\[a-z]+)", r"\1(\2)"),
    # Inequalities that SymPy prints.
    (r"\(-oo < \w+\) & | & \(\w+ < oo\)", ""), (r"\(\(([^()<>]*[<>][^()]*)\)\)", r"(\1)"),
    (r"\(([^()]*[<>][^()]*)\) ?& ?\(([^()]*[<>][^()]*)\)", r"\1\\text{ and }\2"),
    (r"\(([^()]*[<>][^()]*)\) ?\| ?\(([^()]*[<>][^()]*)\)", r"\1\\text{ or }\2"),
    # Other signs and names that Python and SymPy print.
    (r"\*\*", "^"), (_word("oo|infinity"), r"\\infty "), (_word("EmptySet"), r"\\emptyset "),
    (_word("Reals"), r"\\mathbb{R}"),
)  # fmt: skip
_AFTER_CALLS = _compiled(
    (r"\{ ?\{([^{}]*)\} ?\}", r"{\1}"),
    # Degrees.
    (r"\^ ?(?:\{ ?)?\\text ?\{ ?o ?\}(?: ?\})?|(?<=\d)\^o(?![a-z])", r"^\\circ"),
    (r"\^ ?\{ ?(?:\^?\\circ|o) ?\}|\^ ?\^?\\circ", r"^\\circ"),
    (r"\^\\circ ?(?:\\text ?\{ ?([CFK]) ?\}|([CFK])(?![A-Za-z]))", r"\\text{ degree \1\2}"),
    # What is upright and no word: a constant, a number, signs.
    (r"\\text ?\{ ?((?:[^{}a-zA-Z\\]|\\[a-zA-Z]+|\\.)*|[^{}a-zA-Z]*\d[^{}]*|[ei]) ?\}", r"\1"),
    (r"\{ ?([,:]) ?\}", r"\1"),
    # Relations and unions.
    (r"(?<=[)\]]) ?U ?(?=[(\[])", r"\\cup "), (r":=", "="),
    (r"<=", r"\\le "), (r">=", r"\\ge "), (r"!=", r"\\ne "),
    # Words before an answer, and units.
    (r"^\\text\{[^{}]*(?: is| are|[a-z]:):? ?\}", ""),
    (r"\\frac ?\{ ?\\text\{([^{}]*)\} ?\} ?\{ ?\\text\{([^{}]*)\}((?:\^\d)?) ?\}", r"\\text{\1/\2\3}"),
    (r"(\\text\{(?! ?(?:or|and) ?\})[^{}]*)\} ?(?:(/)|\\cdot)? ?\\text\{(?! ?(?:or|and) ?\})([^{}]*\})", r"\1 \2\3"),
    # Times and ratios.
    (r"(?:(?<=:\d\d)| |(?=\\text)) ?(?:\\text\{ ?)?([apAP])\.?[mM]\.? ?\}?$", r"\\text{ \1m}"),
    (r"o'clock", "oclock"), (r"(?<=\d) to (?=\d)", ":"),
    # Powers, and thousands before a name.
    (r"\^ ?(-\d+|\d\d+)", r"^{\1}"),
    (r"(?<![\d,(\[{])(\d{1,3}),(\d{3})(?= ?(?:\\pi|\\sqrt|[a-z]))", r"\1\2"),
    # Repeating decimals.
    (r"\\dot ?\{?(\d)\}? ?(\d*) ?\\dot ?\{?(\d)\}?", r"\\overline{\1\2\3}"),
    (r"(?<=[\d.]) ?\\(?:bar|dot|overline) ?\{? ?(\d+) ?\}?", r"\\overline{\1}"),
    (r"(\.\d*)\((\d+)\)", r"\1\\overline{\2}"), (r"\.\.\.", r"\\ldots"),
    (r"(\.\d{0,20}?)(\d{1,9}?)\2{1,20} ?\\ldots", r"\1\\overline{\2}"),
    # Functions and sets.
    (_word(_PLAIN), r"\\\1"),
    (r"\\abs ?\{([^{}]*)\}", r"|\1|"), (r"\{ ?([^{}]+?) ?\\choose ?([^{}]+?) ?\}", r"\\binom{\1}{\2}"),
    (r"\\\{ ?\\\}", r"\\emptyset "),
    (r"\[(?= ?-\\infty)", "("),  # Infinite ends are open.
    (r"(?<=\\infty) ?\]", ")"), (r" +", " "),
)  # fmt: skip


def spelled(text: str, log: str = r"\ln") -> str:
    """`text` with one spelling for each of the signs, commands and functions that have several.

    Args:
        log: the command for "log(x)" in plain text, which is the natural logarithm if SymPy or Python prints it.
    """
    text = _replaced(in_ascii(text), _BEFORE_COMMANDS)
    text = _replaced(_COMMAND.sub(lambda found: _COMMANDS.get(found[1], found[0]), text), _BEFORE_CALLS)
    return _replaced(_ROWS.sub(_matrix, _with_calls(text, log)), _AFTER_CALLS)


def _replaced(text: str, spellings: list[tuple[re.Pattern[str], str]]) -> str:
    for pattern, replacement in spellings:
        text = pattern.sub(replacement, text)
    return text


def in_ascii(text: str) -> str:
    """`text` with LaTeX for the characters that occur in formulas; others, such as circled digits, stay."""
    if text.isascii():
        return text
    runs = ((script, "".join(map(_character, run))) for script, run in itertools.groupby(text, _script))
    return "".join(f"{script}{{{run}}}" if script else run for script, run in runs)


def _script(character: str) -> str:
    kind = unicodedata.decomposition(character).partition(" ")[0]
    return {"<super>": "^", "<sub>": "_"}.get(kind, "")


def _character(character: str) -> str:
    if character.isascii() or character in _CHARACTERS:
        return _CHARACTERS.get(character, character)
    if greek := _GREEK.fullmatch(unicodedata.name(character, "")):
        name = greek[2].replace("LAMDA", "LAMBDA")
        return f"\\{name.lower() if greek[1] == 'SMALL' else name.title()} "
    usual = unicodedata.normalize("NFKC", character)
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if usual == character or kind == "<circle>":
        return character
    if kind == "<fraction>":
        return r"\frac{{{}}}{{{}}}".format(*usual.split("\u2044"))
    return "".join(map(_character, usual))


def _with_calls(text: str, log: str) -> str:
    """`text` with LaTeX for the calls of `_FUNCTIONS`; the inner ones come first."""
    for call in reversed(list(_CALL.finditer(text))):
        if (end := closing(text, call.end())) is not None:
            name = call[1] or "^"
            arguments = [one.strip("'\"") for one in split(text[call.end() : end], _COMMA)]
            latex = _called(name, arguments, log)
            text = text[: call.start()] + latex + text[end + 1 :]
    return text


def _called(name: str, arguments: list[str], log: str) -> str:
    if name == "log":
        base = rf"\log_{{{arguments[1]}}}" if len(arguments) > 1 else log
        return f"{base}({arguments[0]})"
    latex = _PRINTED[name].replace("#*", _JOINED.get(name, ",").join(arguments))
    if name in ("Matrix", "array") and not _ROWS.match(latex):  # A list of numbers is a column.
        latex = f"[{','.join(f'[{one}]' for one in split(latex[1:-1], _COMMA))}]"
    for number in (1, 2):
        latex = latex.replace(f"#{number}", "".join(arguments[number - 1 : number]))
    return latex


def _matrix(found: re.Match[str]) -> str:
    """The lists of a list as the rows of a matrix; NumPy prints them without commas."""
    rows = [split(row, _COMMA) if "," in row else row.split() for row in _ROW.findall(found[1])]
    return r"\begin{pmatrix}" + r"\\".join(map("&".join, rows)) + r"\end{pmatrix}"
