"""Generated task of many searches, few of which decide: follow a trail of pages, with the right turns at its forks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rllib_arpo.envs.question import MATH, Question
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.envs.tasks.task import TEST, Task, permutation
from rllib_arpo.envs.tasks.trail_forms import FORMS, MAIN, NUM_TEST, NUM_TRAIN, OPENING, SYLLABLES, TrailForm

COLOURS = ("red", "blue", "green", "white", "black", "brown", "pink", "gold", "silver", "purple")
SYSTEM = "Search page by page. Answer in \\boxed{}."
#: (a page that asks for a decision, number of such pages before it) -> index of the hit to follow.
Choice = Callable[["TrailPage", int], int]


@dataclass(frozen=True, slots=True)
class TrailPage:
    """The result of a search for a name; or the opening of a trail, which the question shows.

    Attributes:
        hits: (label, name) of the pages to which it leads, in the order shown.
        number: the answer at the end of a trail, where there are no hits.
        right: index of the hit for which the question asks.
    """

    hits: tuple[tuple[str, str], ...] = ()
    number: int | None = None
    right: int = 0

    @property
    def text(self) -> str:
        return f"number {self.number}" if self.number else ", ".join(map(hit_text, self.hits))

    @property
    def is_decisive(self) -> bool:
        return len(self.hits) > 1


def hit_text(hit: tuple[str, str]) -> str:
    """A hit as it is written, and as it is searched for: "red Toluna"."""
    return " ".join(hit).lstrip()


@dataclass(frozen=True, slots=True)
class Trail:
    """All pages of one question: name -> page.

    Attributes:
        opening: leads to the names that the question shows.
        colours: of the right hits, in their order.
    """

    opening: TrailPage
    colours: tuple[str, ...]
    pages: Mapping[str, TrailPage]

    def walk(self, choose: Choice) -> Iterator[tuple[str, TrailPage]]:
        """The (name, page) pairs on the path if hit `choose(page, d)` is followed at decision number d."""
        page, num_decisions = self.opening, 0
        while page.hits:
            chosen = 0
            if page.is_decisive:
                chosen = choose(page, num_decisions)
                num_decisions += 1
            name = page.hits[chosen][1]
            page = self.pages[name]
            yield name, page

    @property
    def answer(self) -> int:
        *_, (_name, last) = self.walk(lambda page, _decision: page.right)
        assert last.number is not None
        return last.number


@dataclass(frozen=True, kw_only=True)
class TrailsTask(Task):
    """ "Follow red and blue from Korami.": six searches, each for a name that the last one has shown; then a number.

    Two pages, late and at varying places, show three hits in random order, "red Toluna, blue Misaro, green Davopi"; the
    question says which colour to follow, first and then. The others show one, "see Toluna". A wrong hit leads on, to a
    trail of the same form that ends with another number. The colours of a question are different and drawn at random,
    so that a policy that ignores the question is right in one of nine cases, whatever it prefers.
    No name occurs in two questions, in two splits or in the demonstrations (`tuned_examples/trails_demonstrations.py`).

    That is the form "main". Two others tell where forks help. "late": ten searches, and after six or seven of them the
    first of three pages with two hits, "Follow red, blue and green from Korami."; one case of eight. "plain": six
    searches of one hit each, and four names to start from, "Follow red from blue Tasume, red Korami, pink Lodiva, gold
    Pemofu."; one case of four, decided before the first tool response. "any" tells whether the entropy finds more than
    the depth: eight searches, of which any two of the first seven show two hits, and the same colour is right at both,
    "Follow red from Korami."; one case of four.

    Attributes:
        seed: of the order of the training questions; the questions themselves are always the same.
        form: a name in `trail_forms.FORMS`.
    """

    tools: ClassVar[tuple[str, ...]] = ("search",)
    split: str = "train"
    seed: int = 0
    form: str = MAIN.name

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known([self.form], FORMS, "form of trails")

    @property
    def num_questions(self) -> int:
        return len(_rows(self.split))

    def question(self, number: int, tools: Sequence[str] = tools) -> Question:
        row = self.row(number)
        trail = make_trail(_rows(self.split)[row], FORMS[self.form])
        task = "trails" if self.form == MAIN.name else f"trails-{self.form}"
        return trail_question(trail, f"{task}/{self.split}/{row}")

    def tool_defaults(self) -> Mapping[str, Mapping[str, Any]]:
        return {"search": {"documents": _documents(self.split, self.form), "top_k": 1}}


def trail_question(trail: Trail, name: str) -> Question:
    *others, last = dict.fromkeys(trail.colours)
    colours = f"{', '.join(others)} and {last}" if others else last
    text = f"Follow {colours} from {trail.opening.text}."
    return Question(name, (("system", SYSTEM), ("user", text)), (str(trail.answer),), MATH, name)


def shows_a_choice(result: str) -> bool:
    """Whether a search result, as the model reads it, belongs to a decisive page."""
    return ", " in result


def _rows(split: str) -> range:
    """The numbers of a split's trails."""
    return range(NUM_TEST) if split == TEST else range(NUM_TEST, NUM_TEST + NUM_TRAIN)


@functools.lru_cache(maxsize=2)
def _documents(split: str, form: str) -> tuple[dict[str, str], ...]:
    trails = (make_trail(number, FORMS[form]) for number in _rows(split))
    return tuple({"title": name, "text": page.text} for trail in trails for name, page in trail.pages.items())


def make_trail(number: int, form: TrailForm = MAIN) -> Trail:
    """Trail `number` of a form: first the test split, then the training split, then the demonstrations."""
    rng = np.random.default_rng(number)
    names = trail_names(number, form)
    pattern = form.patterns[rng.integers(len(form.patterns))]
    colours = _draw_colours(form, rng)

    def draw_page(place: int) -> TrailPage:
        labels = colours[pattern.index(place)] if place in pattern else np.array(["" if place == OPENING else "see"])
        order = rng.permutation(len(labels))
        hits = tuple((str(label), next(names)) for label in labels[order])
        return TrailPage(hits, right=int(np.flatnonzero(order == 0)[0]))

    opening = draw_page(OPENING)
    pages: dict[str, TrailPage] = {}
    level = [name for _, name in opening.hits]
    for place in range(form.num_pages - 1):
        pages |= {name: draw_page(place) for name in level}
        level = [hit for name in level for _, hit in pages[name].hits]
    numbers = rng.permutation(np.arange(10, 100))
    pages |= {name: TrailPage(number=int(n)) for name, n in zip(level, numbers, strict=False)}
    return Trail(opening, tuple(str(labels[0]) for labels in colours), pages)


def _draw_colours(form: TrailForm, rng: np.random.Generator) -> list[np.ndarray]:
    """[hits] of each decision, the right one first."""
    drawn = rng.permutation(COLOURS)
    if not form.one_colour:
        return np.split(drawn[: form.num_decisions * form.num_hits], form.num_decisions)
    wrong = np.split(drawn[1 : 1 + form.num_decisions * (form.num_hits - 1)], form.num_decisions)
    return [np.append(drawn[0], colours) for colours in wrong]


def trail_names(number: int, form: TrailForm) -> Iterator[str]:
    """The names of a trail, of three syllables each ("Korami"); no other trail of the form has any of them."""
    order = permutation(0, 0, len(SYLLABLES) ** 3)
    for index in order[number * form.names_per_trail : (number + 1) * form.names_per_trail]:
        digits = np.unravel_index(index, (len(SYLLABLES),) * 3)
        yield "".join(SYLLABLES[digit] for digit in digits).capitalize()
