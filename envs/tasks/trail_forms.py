"""The forms that a trail can have: how long it is, and where it asks for decisions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aiou")
NUM_TEST, NUM_TRAIN = 256, 1024
#: The place of a decision that the question asks for, before any page is seen.
OPENING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailForm:
    """The places at which the trails of a task fork.

    Attributes:
        num_pages: the pages of a path, each of which takes a search.
        patterns: the places of the decisions, one of these for each trail: pages that show several hits, counted from
            0, or `OPENING`. A trail has as many decisions in every pattern.
        num_hits: how many hits a page shows at such a place; one of them is right.
        demonstrated_right: the probability with which the imperfect demonstrator takes the right hit on purpose; such
            that three or four in ten of its trails end right, chance included.
        one_colour: whether the question asks for the same colour at every decision.
        max_response_tokens, max_context_tokens: of the small model (`trails_models.py`); more than twice what
            its longest right solution takes.
    """

    name: str
    num_pages: int
    patterns: tuple[tuple[int, ...], ...]
    num_hits: int
    demonstrated_right: float
    max_response_tokens: int
    max_context_tokens: int
    one_colour: bool = False

    @property
    def num_decisions(self) -> int:
        return len(self.patterns[0])

    @property
    def names_per_trail(self) -> int:
        """No trail has more pages, its wrong branches included."""
        return max(self._num_pages_in_all(pattern) for pattern in self.patterns)

    def _num_pages_in_all(self, pattern: tuple[int, ...]) -> int:
        return sum(self.num_hits ** sum(place < page for place in pattern) for page in range(self.num_pages))

    @property
    def num_demonstrated(self) -> int:
        """Trails of neither split, for demonstrations."""
        return len(SYLLABLES) ** 3 // self.names_per_trail - NUM_TEST - NUM_TRAIN

    @property
    def max_tool_calls(self) -> int:
        """One more than are needed."""
        return self.num_pages + 1


MAIN = TrailForm(
    name="main",
    num_pages=6,
    patterns=((2, 3), (2, 4), (3, 4)),
    num_hits=3,
    demonstrated_right=0.3,
    max_response_tokens=320,
    max_context_tokens=384,
)
#: Forks at these decisions share six to nine searches of ten.
LATE = TrailForm(
    name="late",
    num_pages=10,
    patterns=((5, 6, 7), (5, 6, 8), (5, 7, 8), (6, 7, 8)),
    num_hits=2,
    demonstrated_right=0.3,
    max_response_tokens=448,
    max_context_tokens=512,
)
#: No tool response asks for a decision: forks share the only one.
PLAIN = TrailForm(
    name="plain",
    num_pages=6,
    patterns=((OPENING,),),
    num_hits=4,
    demonstrated_right=0.05,
    max_response_tokens=320,
    max_context_tokens=384,
)
#: Decisions at any depth: where a fork lies deep, it need not lie at one.
ANY = TrailForm(
    name="any",
    num_pages=8,
    patterns=tuple(itertools.combinations(range(7), 2)),
    num_hits=2,
    demonstrated_right=0.3,
    max_response_tokens=384,
    max_context_tokens=448,
    one_colour=True,
)
FORMS: dict[str, TrailForm] = {form.name: form for form in (MAIN, LATE, PLAIN, ANY)}
