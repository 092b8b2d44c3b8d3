"""Takes the training questions in their order, batch by batch; reads ahead if older weights may sample them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.core.figures import has_signal, oldest_weights
from rllib_arpo.core.prioritized import PrioritizedDraws
from rllib_arpo.rollout.dispatch import QuestionDispatcher
from rllib_arpo.rollout.messages import QuestionRef, SampledQuestion, SamplingConditions


@dataclass(frozen=True, slots=True)
class Batch:
    """The questions of one update.

    Attributes:
        questions: the questions to train on.
        asked: all questions sampled for the batch, including those without signal.
        resample_rounds: how often questions without signal were replaced.
        num_dropped: questions without signal that were left after the last round.
        num_given_up: questions that could not be sampled and are missing in the batch.
        num_prioritized: questions that were asked before, and again because of their pass rate.
        num_requeued: questions that were sampled again because the weights that had sampled them were too old.
        weight_lag: updates between the oldest weights that sampled any of them and the weights being trained.
    """

    questions: list[SampledQuestion]
    asked: list[SampledQuestion]
    resample_rounds: int
    num_dropped: int
    num_given_up: int
    num_prioritized: int
    num_requeued: int
    weight_lag: int


class QuestionStream:
    """Takes questions in their order, however long they last, so quick ones have no advantage.

    Attributes:
        next_number: the number of the first place that is in no batch yet.
        draws: which questions the places ask. A checkpoint keeps their state, and `next_number`.
    """

    def __init__(self, dispatcher: QuestionDispatcher, config: AlgorithmConfig):
        self._dispatcher = dispatcher
        self._config = config
        self.draws = PrioritizedDraws(config.prioritized_share)
        self._asked_until = self._num_prioritized = self._num_requeued = 0
        self.next_number = 0

    def next_batch(self, conditions: SamplingConditions) -> Batch:
        """The next `questions_per_batch` questions; DAPO's rounds replace questions whose rewards are all equal.

        Questions that are still without signal after the last round leave the batch: in the denominator of the loss
        they would shrink the step (docs/rllib.md, "What is not computed"). If no question has a signal, all stay,
        since an iteration without a question has no metrics.

        With `max_weight_lag` the next batches are in flight when this one is returned.

        Raises:
            RuntimeError: all questions were given up (`QuestionDispatcher.collect` raises further errors).
        """
        config = self._config
        self._num_prioritized = self._num_requeued = rounds = 0
        self._ask_until(self.next_number + (1 + config.max_weight_lag) * config.questions_per_batch)
        asked = batch = self.take(config.questions_per_batch, conditions)
        while rounds < config.max_resample_rounds and not all(has_signal(s.tree) for s in batch):
            kept = [s for s in batch if has_signal(s.tree)]
            fresh = self.take(config.questions_per_batch - len(kept), conditions)
            batch, asked, rounds = kept + fresh, asked + fresh, rounds + 1
        trained = [s for s in batch if has_signal(s.tree)] if config.max_resample_rounds else batch
        trained = trained or batch or asked
        given_up = self._dispatcher.take_given_up()
        if not trained:
            raise RuntimeError(f"No question of the batch could be sampled. Last cause: {[*given_up.values()][-1]}")
        lag = max(weight_lag(s, conditions.weight_version) for s in asked)
        return Batch(
            trained,
            asked,
            rounds,
            num_dropped=max(len(batch) - len(trained), 0),
            num_given_up=len(given_up),
            num_prioritized=self._num_prioritized,
            num_requeued=self._num_requeued,
            weight_lag=lag,
        )

    def restart(self, number: int | None = None, draws: Mapping[str, Any] | None = None) -> None:
        """Drops the questions in flight, and asks them again, or goes on where a checkpoint was.

        Args:
            number: `next_number` of the checkpoint.
            draws: the state of its `draws`; checkpoints of older versions have none.
        """
        self._dispatcher.drop_all()
        if draws is not None:
            self.draws.set_state(draws)
        elif number is not None:
            self.draws.skip_to(number)
        self.next_number = self._asked_until = self.next_number if number is None else number

    def _ask_until(self, stop: int, *, only_new: bool = False) -> None:
        """Asks the questions of all places before `stop` that have not been asked yet; see `PrioritizedDraws.draw`."""
        if stop > self._asked_until:
            places = range(self._asked_until, stop)
            self.draws.draw(places, only_new=only_new)
            self._dispatcher.ask([self._ref(place) for place in places])
            self._asked_until = stop

    def _ref(self, place: int) -> QuestionRef:
        question = self.draws.question_at(place)
        return QuestionRef(place, question=None if question == place else question)

    def take(self, num_questions: int, conditions: SamplingConditions) -> list[SampledQuestion]:
        """The next questions, sampled by weights that are not too old. With a lag, the next batches are in flight."""
        ahead = self._config.max_weight_lag * self._config.questions_per_batch
        self._ask_until(self.next_number + num_questions + ahead, only_new=True)
        refs = [self._ref(place) for place in range(self.next_number, self.next_number + num_questions)]
        sampled = self._dispatcher.collect(refs, conditions)
        while too_old := self._too_old(sampled, conditions.weight_version):
            self._num_requeued += len(too_old)
            self._dispatcher.ask(too_old)
            fresh = {s.ref: s for s in self._dispatcher.collect(too_old, conditions)}
            # A question that is given up now has no sample that is new enough.
            sampled = [fresh.get(s.ref, s) for s in sampled if s.ref in fresh or s.ref not in too_old]
        trees = {s.ref: s.tree for s in sampled}
        self._num_prioritized += sum(self.draws.ended(ref.number, trees.get(ref)) for ref in refs)
        self.next_number += num_questions
        return sampled

    def _too_old(self, sampled: Sequence[SampledQuestion], version: int | None) -> list[QuestionRef]:
        return [s.ref for s in sampled if weight_lag(s, version) > self._config.max_weight_lag]


def weight_lag(question: SampledQuestion, version: int | None) -> int:
    """The updates between the oldest weights that sampled a question and `version`; 0 if either is not known."""
    oldest = oldest_weights(question.tree)
    return 0 if oldest is None or version is None else version - oldest
