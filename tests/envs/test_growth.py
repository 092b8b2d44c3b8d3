"""Whatever reads a text of a model, a page or a tool in the rollout's loop takes at most a time in proportion to it.

Twice the text may take at most `MOST` times the time. `pytest -s tests/envs/test_growth.py` prints the figure of each
reader.
"""

import contextlib
import gc
import re
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import httpx
import pytest

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.protocols import PROTOCOLS
from rllib_arpo.envs.protocols.function_calling import FunctionCallingProtocol
from rllib_arpo.envs.protocols.prompts import Chat, turn_text
from rllib_arpo.envs.protocols.protocol import CallRequest
from rllib_arpo.envs.protocols.tags import TagProtocol
from rllib_arpo.envs.rewards import judge, qa
from rllib_arpo.envs.rewards.mathematics import accuracy, forms, formulas, text
from rllib_arpo.envs.support import boxes
from rllib_arpo.envs.support.texts import first_line, usual_letters, valid_unicode
from rllib_arpo.envs.tools.arguments import parse_model_json
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.python import program
from rllib_arpo.envs.tools.registry import TOOLS
from rllib_arpo.envs.tools.search import MAX_QUERY_CHARS, SearchTool
from rllib_arpo.envs.tools.tool import cut
from rllib_arpo.envs.web.addresses import MAX_URL_CHARS, AddressRule
from rllib_arpo.envs.web.fetch import Fetched
from rllib_arpo.envs.web.readable import Page, is_html
from rllib_arpo.envs.worlds.functions import FunctionTool
from rllib_arpo.envs.worlds.mcp import result_text
from tests.helpers.models import byte_tokenizer

#: The most that twice a text may take, as a multiple of the time of the text.
MOST = 2.5
#: The shapes of a text that take a reader longest at this length are those whose growth is measured.
SCREENED_CHARS, NUM_MEASURED = 1 << 12, 2
#: Seconds of processor time from which growth is measured, and the length at which a faster reader is quick enough.
MIN_S, MAX_CHARS = 0.005, 1 << 18
#: How readers refuse a text; anything else that they raise is a defect.
REFUSALS = (ToolError, ValueError, accuracy.NeedsAlgebra, httpx.InvalidURL)
#: A reader is slow if every trial says so: caches and other processes disturb.
TRIES = 5

# Not tried, since a process reads the text and is ended at a limit of time: `web.reader` (HTML), SymPy
# behind `mathematics.algebra.same`, programs of the Python tool.

TOKENIZER = byte_tokenizer()
CHAT = Chat(TOKENIZER)
TAGS = TagProtocol()
CALLS = FunctionCallingProtocol({}, end_of_turn="<|im_end|>", special=frozenset({"<|im_end|>", "<|im_start|>"}))
SCHEMA = FunctionTool(
    name="find",
    function=str,
    arguments=dict,
    input_schema={"properties": {"a": {"type": "object", "required": ["b"]}, "b": {}}},
)


def encoded(written: str):
    return TOKENIZER.encode(written, add_special_tokens=False)


def refuse(gold: str, answer: str) -> bool:
    raise accuracy.NeedsAlgebra


def page(content_type: str, content: str) -> Fetched:
    return Fetched("http://a.org", content_type, content.encode(errors="replace"))


def cookies(header: str) -> None:
    """A response's cookies, as `httpx.AsyncClient` keeps them."""
    request = httpx.Request("GET", "http://a.org")
    headers = [(b"set-cookie", re.sub(r"[\r\n\0]", " ", header).encode(errors="replace"))]
    httpx.Cookies().extract_cookies(httpx.Response(200, headers=headers, request=request))


def redirect(location: str) -> None:
    """The next address, as `httpx.AsyncClient` finds it."""
    httpx.URL("http://a.org").join(httpx.URL(location[:65536]))


#: Name -> what reads the text. The names of tools and protocols are those of their registries.
READERS: dict[str, Callable[[str], object]] = {
    "protocol tags": TAGS.parse,
    "protocol tags: format": lambda s: TAGS.format_error([s, s]),
    "protocol tags: response": lambda s: TAGS.response(CHAT, CallRequest("search", ""), valid_unicode(s), encoded("")),
    "protocol function_calling": CALLS.parse,
    "boxes": boxes.boxes,
    "text of a turn": lambda s: turn_text(TOKENIZER, encoded(valid_unicode(s))),
    "shield": CHAT.shield,
    "cut": lambda s: cut(TOKENIZER, valid_unicode(s), 100),
    "model_json": parse_model_json,
    "tool python": program,
    "tool search": SearchTool(documents=[{"text": "a"}]).read,
    "tool browse": BrowseTool().read,
    "tool browse: address": AddressRule().check_url,
    "tool mcp": SCHEMA.read,
    "tool mcp: native": lambda s: SCHEMA.read({"a": s}),
    "tool mcp: result": lambda s: result_text(SimpleNamespace(content=[SimpleNamespace(type="text", text=s)] * 2)),
    "web: kind of page": lambda s: is_html(page(s, s)),
    "web: page": lambda s: Page.from_json(Page("http://a.org", s, s).to_json()).shown(),
    "web: cookies": cookies,
    "web: redirect": redirect,
    "qa: normalize": qa.normalize_text,
    "qa: f1": lambda s: qa.bounded_f1(s, ["Paris", "New York"]),
    "math: clean": text.clean,
    "math: spelled": text.spelled,
    "math: quantity": lambda s: text.read_quantity(s),
    "math: form": lambda s: forms.read_form(text.clean(s) or "x"),
    "math: equal": lambda s: forms.equal("x+1", s, refuse),
    "math: equal sets": lambda s: forms.equal(r"\{1,2,3\}", s, refuse),
    "math: worked out": lambda s: accuracy.worked_out(s, "5", "What is 2+3?"),
    "math: restated": lambda s: accuracy.worked_out(s, "x^2+1", f"Factor {s}"),
    "math: formulas": formulas.formulas.__wrapped__,
    "judge: request": lambda s: judge._request("What?", ("Paris",), s),
    "judge: verdict": judge.read_verdict,
    "text: valid_unicode": valid_unicode,
    "text: usual_letters": usual_letters,
    "text: first_line": lambda s: first_line(ValueError(s)),
}

#: Beginning of names -> the length that these readers accept.
LIMITS = {"math:": text.MAX_CHARS, "tool search": MAX_QUERY_CHARS, "tool browse": MAX_URL_CHARS}

#: (before, repeated, after) of a text.
SHAPES = [
    *(("", unit, "") for unit in (
        "\n", " ", "\t", "  \n", "a", "1", "9", "0.", "1,", ",000", "{", "}", "\\", "\\{", "\\text{", "\\boxed{",
        "\\frac{", "\\sqrt{", "(", ")", "[", "<", "</", "<think>", "</think>", "<answer>", "<search>", "<result>",
        "<tool_call>", "<|im_end|>", "'", '"', '{"a":', "$", "%", "^", "_", "=", ",", ";", " or ", "\\text{ or }",
        "\\cup", "+", "-", "1/", "/", ":", "http://", "@", "?", "#", "&", "%20", ".", "..", "the ", "```",
        "```python\n", "\u0301", "\u200b", "İ", "½", "٣", "\u2028", "\udc00", "\r", "\x00", "\\left(", "\\begin{",
        "\\\\", "\\(", "\\[", "\\begin{align}", "\\overline{", "^\\circ", "ab ", "xn--", "ex=;",
    )),
    ("```python", "\n", "x"),
    ("```python", " \n", "```x"),
    ("1", " ", "x"),
    ("x=", "1 ", "\\text{a}"),
    ("x", "=1", ""),
    ("\\{", "1,", "2\\}"),
    ("(", "(1,2),", "1)"),
    ("", "\\pm 1,", "2"),
    ("x \\in ", "(1,2)\\cup", "(3,4)"),
    ("1,", "000,", "x"),
    ("a", " ", "\\text{cm}^"),
    ("\\boxed{", "{}", ""),
    ("<answer>\\boxed{", "\\{", "}</answer>"),
    ("<search>", "<", "</search>"),
    ("<tool_call>", '{"a":', "</tool_call>"),
    ("<tool_call>", " ", "</tool_call>"),
    ('<tool_call>{"name": "a", "arguments": {"b": "', "\\u0041", '"}}</tool_call>'),
    ('{"a": {"c": "', "\\n", '"}}'),
    ('{"a": [', "[],", "0]}"),
    ("http://a.org/", "a/../", ""),
    ("http://", "a.", "org"),
    ("http://", "é", ".org"),
    ("http://a.org/ ", " ", "x"),
    ("a=b; expires=", "1", ""),
    ("a=b; expires=", " ", "x"),
    ("a=b; expires=Mon, 1-Jan-", "0", ""),
    ("a=", '"\\', ""),
    ("text/html; charset=", " ", "x"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def cpu_s(read: Callable[[str], object], written: str) -> float:
    begin = time.thread_time()
    with contextlib.suppress(*REFUSALS):  # What is refused, and how, is what other tests are about.
        read(written)
    return time.thread_time() - begin


def written(shape: tuple[str, str, str], chars: int) -> str:
    before, repeated, after = shape
    return before + repeated * (chars // len(repeated)) + after


def growth(read: Callable[[str], object], shape: tuple[str, str, str], max_chars: int = MAX_CHARS) -> float:
    """The time of twice a text over that of the text, by that of four times the text; the least of a few trials.

    0 if `max_chars` take no time.
    """
    chars = 1 << 6
    while cpu_s(read, written(shape, chars)) < MIN_S:
        chars *= 2
        if 2 * chars > max_chars:
            return 0.0
    found = MOST + 1
    for _ in range(TRIES):
        once, longer = (cpu_s(read, written(shape, length)) for length in (chars, 4 * chars))
        found = min(found, (longer / once) ** 0.5)
        if found <= MOST:
            break
    return found


@pytest.mark.parametrize("name", READERS)
def test_twice_the_text_takes_at_most_twice_the_time(name, record_property):
    read = READERS[name]
    limit = next((limit for beginning, limit in LIMITS.items() if name.startswith(beginning)), MAX_CHARS)
    length = min(SCREENED_CHARS, limit // 2)
    slowest = sorted(SHAPES, key=lambda shape: -cpu_s(read, written(shape, length)))[:NUM_MEASURED]
    figure, shape = max((growth(read, shape, limit), shape) for shape in slowest)
    record_property("growth", round(figure, 2))
    print(f"\n{name}: {figure:.2f}" + (f" for {shape[0]!r} + n * {shape[1]!r}" if figure else ""))
    assert figure <= MOST, f"{name}: {shape}"


def test_a_cubic_reader_is_found(monkeypatch):
    """The pattern for fences of before, on newlines."""
    monkeypatch.setattr(f"{__name__}.TRIES", 1)
    fence = re.compile(r"```(?:python|py)?\s*\n(.*?)\n?\s*```", re.DOTALL)
    assert growth(lambda s: fence.fullmatch(s.strip()), ("```python", "\n", "x")) > MOST


def test_every_tool_and_protocol_is_tried():
    assert {f"tool {name}" for name in TOOLS} | {f"protocol {name}" for name in PROTOCOLS} - {
        "protocol tags_with_thought"
    } <= set(READERS)
