"""`TreeRecorder`: chooses the questions of a run that are recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.record.schema import FAILED
from rllib_arpo.record.settings import RecordSettings
from rllib_arpo.record.tables import evaluation_table, training_table
from rllib_arpo.record.writer import RecordWriter, write_table
from rllib_arpo.rollout.messages import SampledQuestion

#: The record's folder in a trial's folder.
RECORD_FOLDER = "trees"


class TreeRecorder:
    """Writes the trees of a run: a share of the training questions, and all evaluation questions.

    The driver chooses the questions and hands them to a thread, which computes and writes everything. With
    `record_share=None` it writes only the questions that ended the run.

    Args:
        folder: gives the trial's folder, in which the record's own one is made.
    """

    def __init__(self, settings: RecordSettings, folder: Callable[[], Path]):
        self._settings = settings
        self._folder = folder

    @cached_property
    def _writer(self) -> RecordWriter:
        return RecordWriter(self._folder() / RECORD_FOLDER)

    def training(
        self,
        iteration: int,
        asked: Sequence[SampledQuestion],
        episodes: Sequence[MultiAgentEpisode],
        statistics: Any,
    ) -> None:
        """Records the chosen ones of an iteration's questions.

        Args:
            asked: all questions of the iteration.
            episodes: those on which the update trains, as the connectors of the user have left them.
            statistics: of their rewards (`QuestionBatch.statistics`).
        """
        if not self._settings.share:
            return
        trained = _trained(asked, episodes)
        chosen = [
            (question, trained[i])
            for i, question in enumerate(asked)
            if is_chosen(question.episode.id_, self._settings.share)
        ]
        if chosen:
            make = partial(training_table, iteration, chosen, self._settings, statistics)
            self._writer.submit(f"iteration-{iteration:05d}.parquet", len(chosen), make)

    def evaluation(self, iteration: int, sampled: Sequence[SampledQuestion]) -> None:
        """Records the questions of an evaluation, which follows `iteration` updates."""
        if self._settings.share is not None:
            make = partial(evaluation_table, iteration, list(sampled), self._settings)
            self._writer.submit(f"evaluation-{iteration:05d}.parquet", len(sampled), make)

    def failed(
        self,
        iteration: int,
        asked: Sequence[SampledQuestion],
        episodes: Sequence[MultiAgentEpisode],
        statistics: Any,
        question_ids: Collection[str],
    ) -> Path:
        """Writes the questions whose update ended the run, at once, and returns the path of their file.

        Args:
            asked, episodes, statistics: as in `training`.
            question_ids: of the questions.
        """
        pairs = zip(asked, _trained(asked, episodes), strict=True)
        chosen = [(question, episode) for question, episode in pairs if question.episode.id_ in question_ids]
        path = self._folder() / RECORD_FOLDER / f"{FAILED}-{iteration:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(training_table(iteration, chosen, self._settings, statistics, FAILED), path)
        return path

    def close(self) -> None:
        """Waits for what is not written yet; can be called twice."""
        if writer := self.__dict__.get("_writer"):
            writer.close()


def is_chosen(question_id: str, share: float) -> bool:
    """Whether a training question is recorded; the same for a question in every epoch, and in every run."""
    return rank(question_id) < share * 2**64


def rank(question_id: str) -> int:
    """The question's place in an order of all names, in [0, 2^64): those with the lowest ones are recorded."""
    return int.from_bytes(hashlib.blake2b(question_id.encode(), digest_size=8).digest(), "big")


def _trained(asked: Sequence[SampledQuestion], episodes: Sequence[MultiAgentEpisode]) -> list[MultiAgentEpisode | None]:
    """For each question the episode on which the update trains; a connector of the user may have made a new one."""
    own = {id(question.episode) for question in asked}
    kept = {id(episode) for episode in episodes}
    new = {episode.id_: episode for episode in episodes if id(episode) not in own}
    return [question.episode if id(question.episode) in kept else new.get(question.episode.id_) for question in asked]
