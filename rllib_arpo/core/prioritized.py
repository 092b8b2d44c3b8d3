"""Prioritized sampling: questions whose last pass rate was nearest to one half are asked again.

A question whose trajectories are all right, or all wrong, teaches nothing, and the variance p (1 - p) is largest at a
pass rate of one half. DAPO's rounds (`max_resample_rounds`) drop such questions after sampling; prioritized draws do
not ask them at all.
"""

from collections.abc import Mapping
from typing import Any

from rllib_arpo.core.pass_at_k import is_correct
from rllib_arpo.core.tree import QuestionTree


def pass_rate(tree: QuestionTree) -> float | None:
    """The share of right trajectories among those that count; None if none counts.

    If none is right, as where rewards are graded, those pass whose accuracy is above the middle of the group's. An
    environment that reports no accuracy has its returns instead, if they are above 0.
    """
    counted = [trajectory for trajectory in tree.trajectories if trajectory.counts]
    if not counted:
        return None
    passed = [is_correct(trajectory.accuracy) for trajectory in counted]
    if not any(passed):
        values = [trajectory.accuracy for trajectory in counted]
        values = values if any(values) else [tree.return_of(trajectory.agent_id) for trajectory in counted]
        middle = max(0.0, (min(values) + max(values)) / 2)
        passed = [value > middle for value in values]
    return sum(passed) / len(passed)


def num_repeats(share: float, num_questions: int) -> int:
    """How many of `num_questions` are earlier ones; 0.58 of 50 are 29, though the product of floats is just below."""
    return int(share * num_questions + 1e-9)


class PrioritizedDraws:
    """Decides which question each place in the order of the training questions asks.

    A share of the places that are drawn together, rounded down, asks earlier questions: first those whose last pass
    rate is nearest to one half; of equal ones, the one asked longest ago. Questions that were always or never right,
    that could not be sampled, or that are in flight, are not asked again. The other places ask the next new questions;
    where a task begins anew, one of these may be a question that is asked again at the same time.

    Attributes:
        share: of the places that ask again, in [0, 1).
    """

    def __init__(self, share: float):
        self.share = share
        #: The number of the next new question.
        self._next_new = 0
        #: The id of a question that may be asked again -> its number, and the pass rate of its last group; the least
        #: recently asked first.
        self._record: dict[str, tuple[int, float]] = {}
        #: The number of a question in the record -> its id.
        self._ids: dict[int, str] = {}
        #: Place -> the number of its question, from the draw on until the place is passed.
        self._drawn: dict[int, int] = {}

    def draw(self, places: range, *, only_new: bool = False) -> None:
        """Draws the questions of the places that have none; a resumed run asks those in flight again.

        Args:
            only_new: ask no earlier questions: the places replace some of a batch, and the rest of it is not in flight.
        """
        new = [place for place in places if place not in self._drawn]
        in_flight = {*self._drawn.values()}
        # Rounded, since 7 of 10 and 3 of 10 are equally near.
        known = [
            (round(abs(rate - 0.5), 9), number) for number, rate in self._record.values() if number not in in_flight
        ]
        again = [number for _, number in sorted(known, key=lambda one: one[0])]
        again = again[: 0 if only_new else num_repeats(self.share, len(new))]
        self._drawn |= zip(new, [*again, *range(self._next_new, self._next_new + len(new) - len(again))], strict=True)
        self._next_new += len(new) - len(again)

    def skip_to(self, number: int) -> None:
        """Goes on with this new question, without a record: a checkpoint had none."""
        self._next_new = number

    def question_at(self, place: int) -> int:
        """The number of the question of a place that was drawn."""
        return self._drawn[place]

    def ended(self, place: int, tree: QuestionTree | None) -> bool:
        """Notes a place's outcome, None if its question was given up; returns whether it was an earlier question."""
        number = self._drawn.pop(place)
        if not self.share:
            return False
        known = self._ids.get(number)
        # If the order has changed since (another seed, more data), this was another question.
        self._forget(number)
        if tree is None or (rate := pass_rate(tree)) is None:  # Asked again, it would probably fail again.
            return False
        if tree.question_id in self._record:  # In another epoch it had another number.
            self._forget(self._record[tree.question_id][0])
        if 0.0 < rate < 1.0:
            self._record[tree.question_id] = number, rate  # Now the most recently asked one.
            self._ids[number] = tree.question_id
        return known == tree.question_id

    def _forget(self, number: int) -> None:
        if (known := self._ids.pop(number, None)) is not None:
            del self._record[known]

    def get_state(self) -> dict[str, Any]:
        """Plain values for `set_state`."""
        return {"next_new": self._next_new, "record": [*self._record.items()], "drawn": [*self._drawn.items()]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._next_new = state["next_new"]
        self._record = {question_id: tuple(found) for question_id, found in state["record"]}
        self._ids = {number: question_id for question_id, (number, _) in self._record.items()}
        self._drawn = dict(state["drawn"])
