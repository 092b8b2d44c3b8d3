"""Transcripts of the task "trails" for the cold start (`rllib_arpo.cold_start`), by good and bad demonstrators."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rllib_arpo.envs.protocols.tags import TagProtocol
from rllib_arpo.envs.retrieval.index import show
from rllib_arpo.envs.tasks.trail_forms import MAIN, NUM_TEST, NUM_TRAIN, TrailForm
from rllib_arpo.envs.tasks.trails import COLOURS, Trail, TrailPage, hit_text, make_trail, trail_names, trail_question

Transcript = dict[str, list[dict[str, str]]]
EXERCISE_PAIRS = 3


@dataclass(frozen=True, slots=True)
class Demonstrator:
    """A demonstrator that keeps the format, and at a decisive page takes the right hit, the first one, or any.

    Attributes:
        right, first: the probabilities of the right and of the first hit; with the remaining probability it takes any.
    """

    right: float
    first: float

    def __post_init__(self) -> None:
        if min(self.right, self.first) < 0 or self.right + self.first > 1:
            raise ValueError(f"right = {self.right} and first = {self.first} must be probabilities with a sum up to 1.")

    def choose(self, page: TrailPage, rng: np.random.Generator) -> int:
        """The index of the hit that the demonstrator follows."""
        any_hit = int(rng.integers(len(page.hits)))
        probabilities = (self.right, self.first, 1 - self.right - self.first)
        return (page.right, 0, any_hit)[rng.choice(3, p=probabilities)]


PERFECT = Demonstrator(right=1.0, first=0.0)


def imperfect(form: TrailForm) -> Demonstrator:
    """A demonstrator that mostly takes the first hit; on the form "main" it takes the right one in 53 of 100 cases."""
    return Demonstrator(right=form.demonstrated_right, first=0.5)


def transcripts(
    count: int, seed: int = 0, form: TrailForm = MAIN, *, demonstrator: Demonstrator
) -> Iterator[Transcript]:
    """`count` rows for `rllib_arpo.cold_start`, of trails in neither split; more rows than such trails repeat them."""
    for number in range(count):
        trail = make_trail(_demonstrated(number, form), form)
        rng = np.random.default_rng((seed, number))
        messages = [{"role": role, "content": text} for role, text in trail_question(trail, "").messages]
        solution = _solution(trail, demonstrator, rng)
        yield {"messages": [*messages, {"role": "assistant", "content": solution}]}


def exercises(count: int, seed: int = 0, form: TrailForm = MAIN) -> Iterator[Transcript]:
    """`count` rows that repeat a list of labelled names in another order, for practice in finding a name.

    In a transcript of the task few tokens depend on search results, and a new model is slow to discover them.
    """
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        names = itertools.islice(trail_names(_demonstrated(number, form), form), EXERCISE_PAIRS)
        pairs = [f"{label} {name}" for label, name in zip(rng.permutation(COLOURS), names, strict=False)]
        messages = [
            {"role": "user", "content": ", ".join(pairs)},
            {"role": "assistant", "content": ", ".join(rng.permutation(pairs))},
        ]
        yield {"messages": messages}


def _demonstrated(number: int, form: TrailForm) -> int:
    """The trail of demonstration `number`."""
    return NUM_TEST + NUM_TRAIN + number % form.num_demonstrated


def _solution(trail: Trail, demonstrator: Demonstrator, rng: np.random.Generator) -> str:
    """The demonstrator's text, interleaved with the search tool's answers."""
    protocol, previous, text = TagProtocol(), trail.opening, ""
    for name, page in trail.walk(lambda page, _decision: demonstrator.choose(page, rng)):
        query = next(hit_text(hit) for hit in previous.hits if hit[1] == name)
        text += f"<search> {query} </search>{protocol.render(show(name, page.text))}"
        previous = page
    return f"{text}<answer> \\boxed{{{previous.number}}} </answer>"


def _imperfect(count: int, seed: int, form: TrailForm) -> Iterator[Transcript]:
    return transcripts(count, seed, form, demonstrator=imperfect(form))


#: Training texts: name -> (count, seed, form) -> rows.
ROWS: dict[str, Callable[[int, int, TrailForm], Iterator[Transcript]]] = {
    "exercises": exercises,
    "perfect": functools.partial(transcripts, demonstrator=PERFECT),
    "imperfect": _imperfect,
}
