"""Answers that are meant to hang, crash or flood the comparison."""

#: The gold answer against which they are tried: no plain number, so that algebra is needed.
GOLD = "2\\pi"

_TOWERS = [
    *(f"{a}^{{{b}^{{{c}^{{{c}}}}}}}" for a in (2, 3, 9, 99) for b in (9, 10) for c in (9, 99)),
    *(f"\\pi^{{{n}^{{{n}^{{{n}}}}}}}" for n in (7, 77, 777)),
    *(f"{{{n}}}^{{-{n}^{{{n}^9}}}}" for n in (8, 88)),
    *("9^9^9^9", "9**9**9**9", "(((9^9)^9)^9)^9^9", "2^{2^{2^{2^{2^{2}}}}}"),
    *("10^{10^{10}}", "\\frac{1}{10^{10^{10}}}", "10^{" + "9" * 100 + "}"),
]
_FACTORIALS = [
    *(f"({n})!" for n in (10**6, 10**8, 10**9, 10**12)),
    *("9" + "!" * n for n in (2, 3, 5, 50)),
    *("\\binom{10^9}{5 \\cdot 10^8}", "(10^{9})! / (10^9 - 1)!", "\\Gamma(10^{10})"),
]
_ENDLESS = [
    "\\sum_{k=1}^{\\infty} \\frac{\\sin(k^2)}{k^3}",
    "\\sum_{k=1}^{10^{12}} k^{k}",
    "\\sum_{n=1}^{\\infty} \\sum_{m=1}^{\\infty} \\frac{1}{(n^2+m^3)^5}",
    "\\prod_{k=1}^{10^9} (1 + k!)",
    "\\int_0^{\\infty} e^{-x^3} \\sin(x^5) dx",
    "\\int_0^1 \\frac{x^{x^x}}{\\ln(1 + x^7)} dx",
    "\\int \\int \\int e^{\\sin(\\cos(x y z))} dx dy dz",
    "\\lim_{x\\to 0} \\frac{\\sin(\\tan(x)) - \\tan(\\sin(x))}{x^{77}}",
    "\\frac{d^{99}}{dx^{99}} x^{x^x}",
]
_LARGE = [
    *(f"(x+y+z+w+1)^{{{n}}}" for n in (50, 200, 1000)),
    *(f"(a+b)^{{{n}}} - (a-b)^{{{n}}}" for n in (999, 10**5)),
    *("+".join(f"\\sqrt{{{p}}}" for p in range(2, 2 + n)) for n in (10, 30, 60)),
    *("\\begin{pmatrix}" + "\\\\".join(["&".join(["x^{99}"] * n)] * n) + "\\end{pmatrix}^{99}" for n in (2, 5, 9)),
    *("0." + "3" * 990, "1" * 900 + "\\pi", "1e999999999", "1.5\\times 10^{999999999}"),
    *(",".join(["\\pi"] * 300), "3\\pi" + "=2\\pi" * 150),
    "\\{" + ",".join(f"{n}\\pi" for n in range(90)) + "\\}",
    "\\sin(" + "9" * 150 + "\\pi) \\cdot \\tan(10^{300})",
]
_NESTED = [
    *(a * n + "1" + b * n for n in (18, 100, 450) for a, b in (("(", ")"), ("{", "}"), ("\\{", "\\}"))),
    *("\\sqrt{" * n + "2" + "+\\pi}" * n for n in (5, 15, 19)),
    *("\\sin(" * n + "x" + ")" * n for n in (5, 15, 19)),
    *("\\frac{1}{" * n + "x" + "}" * n for n in (10, 19, 90)),
    *("x^{" * n + "x" + "}" * n for n in (10, 19, 300)),
]
#: Ten megabytes each; made when they are asked for.
_LONG = [("9", 10**7), ("1+", 5 * 10**6), ("(", 10**7), ("x", 10**7), ("\\frac", 2 * 10**6), ("1,", 5 * 10**6)]
_CHARACTERS = [
    *("\x00", "2\\pi\x00", "2\\pi\x1b[2J", "\ud800", "2\\pi\u200b", "2\u202e\\pi"),
    *("２\\pi２", "＼boxed{2\\pi}", "٢\\pi", "²\\pi", "﷽" * 300),
]
_PATTERNS = [
    *("\\frac{" * 150 + "1", "\\frac 1" * 140, "\\sqrt " * 160, "\\text{" * 160, "\\left(" * 160, "\\boxed{" * 140),
    *("a" * 999, " a" * 499, "(a)_{b}" * 140, "1,000" * 190, "^\\circ" * 160, "-" * 999, "$" * 999, "=" * 999),
    "|x" * 490,
]
_CODE = [
    "__import__('os').system('sleep 9')",
    "\"); print('equal'); (\"",
    *("'''\"", "equal", "{gold}", "\\input{/etc/passwd}"),
]


def hostile_answers() -> list[str]:
    """More than a hundred, all different, none equal to `GOLD`."""
    long = [text * count for text, count in _LONG]
    return [*_TOWERS, *_FACTORIALS, *_ENDLESS, *_LARGE, *_NESTED, *_CHARACTERS, *_PATTERNS, *_CODE, *long]
