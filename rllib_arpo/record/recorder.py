"""Records a run's trees: `TreeRecorder` chooses the questions, and the thread of `RecordWriter` writes them."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from rllib_arpo.core.advantages import MeanAndStd
from rllib_arpo.files import replace_file
from rllib_arpo.record.schema import FAILED
from rllib_arpo.record.tables import evaluation_table, training_table
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.messages import SampledQuestion

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm

    from rllib_arpo.arpo_config import ARPOConfig

logger = logging.getLogger("rllib_arpo")

#: The record's folder in a trial's folder.
RECORD_FOLDER = "trees"
#: How many files may wait for the disk; further files are left out with a warning.
MAX_PENDING = 4
#: Seconds that the end of a run waits for the files.
CLOSE_TIMEOUT_S = 60.0


class RecordWriter:
    """Makes tables and writes each into a file; `submit` never waits.

    If the disk fails, the run goes on without these files: one warning appears when it begins to fail, and `close`
    says how many questions are missing. Any other error in the thread is a bug; the next `submit` or `close` raises it.

    Args:
        folder: the folder of the files; the first file makes it.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="record")
        self._pending: deque[tuple[Future[None], int]] = deque()
        self._failing = False
        self._num_lost = 0

    def submit(self, name: str, num_questions: int, make_table: Callable[[], pa.Table]) -> None:
        """Makes a table in the thread and writes it to the file `name`, which it replaces in one step."""
        while self._pending and self._pending[0][0].done():
            self._pending.popleft()[0].result()
        if len(self._pending) == MAX_PENDING:
            self._num_lost += num_questions
            logger.warning("The record leaves out %s: %d files wait for the disk.", self._folder / name, MAX_PENDING)
            return
        self._pending.append((self._pool.submit(self._write, name, num_questions, make_table), num_questions))

    def close(self) -> None:
        """Waits for the files. A second call does nothing."""
        pending, self._pending = dict(self._pending), deque()
        done, late = wait(pending, CLOSE_TIMEOUT_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        if late:
            logger.warning("The disk did not take %d files of %s in time.", len(late), self._folder)
            self._num_lost += sum(pending[future] for future in late)
        if self._num_lost:
            logger.warning("The record in %s lacks %d questions.", self._folder, self._num_lost)
            self._num_lost = 0
        for future in done:
            future.result()

    def _write(self, name: str, num_questions: int, make_table: Callable[[], pa.Table]) -> None:
        table, path = make_table(), self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_table(table, path)
        except OSError as error:
            self._lose(path, num_questions, error)
        else:
            self._failing = False

    def _lose(self, path: Path, num_questions: int, error: OSError) -> None:
        self._num_lost += num_questions
        if not self._failing:
            logger.warning("Cannot write %s (%s): training goes on without the record.", path, error)
        self._failing = True


def write_table(table: pa.Table, path: Path) -> None:
    """Writes a file of the record to the disk, whole or not at all."""
    with replace_file(path) as partial:
        pq.write_table(table, partial, compression="zstd")
        with partial.open("rb") as written:
            os.fsync(written.fileno())


def trial_folder(algorithm: Algorithm) -> Path:
    """The folder where Tune keeps the trial's results, if it is local; otherwise the algorithm's log folder.

    In a run of Tune `algorithm.logdir` is a working directory, which Tune does not keep with the results.
    """
    storage = algorithm._storage
    if storage is not None and isinstance(storage.storage_filesystem, LocalFileSystem):
        folder = Path(storage.trial_fs_path)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return Path(algorithm.logdir)


class TreeRecorder:
    """Writes the trees of a run: a share of the training questions, and all evaluation questions.

    The driver chooses the questions and hands them to a thread, which computes and writes everything. With
    `record_share=None` it writes only the questions that ended the run.

    Args:
        folder: returns the trial's folder, in which the record gets a folder.
    """

    def __init__(self, config: ARPOConfig, folder: Callable[[], Path]):
        self._config = config
        self._folder = folder

    @cached_property
    def _writer(self) -> RecordWriter:
        return RecordWriter(self._folder() / RECORD_FOLDER)

    def training(
        self,
        iteration: int,
        asked: Sequence[SampledQuestion],
        episodes: Sequence[TreeEpisode],
        statistics: MeanAndStd,
    ) -> None:
        """Records a share of an iteration's questions.

        Args:
            asked: all questions of the iteration.
            episodes: the episodes on which the update trains, after the user's connectors.
            statistics: statistics of their rewards (`QuestionBatch.statistics`).
        """
        if not self._config.record_share:
            return
        trained = _trained(asked, episodes)
        chosen = [
            (question, trained[i])
            for i, question in enumerate(asked)
            if is_chosen(question.episode.id_, self._config.record_share)
        ]
        if chosen:
            make = partial(training_table, iteration, chosen, self._config, statistics)
            self._writer.submit(f"iteration-{iteration:05d}.parquet", len(chosen), make)

    def evaluation(self, iteration: int, sampled: Sequence[SampledQuestion]) -> None:
        """Records the questions of an evaluation, which follows `iteration` updates."""
        if self._config.record_share is not None:
            make = partial(evaluation_table, iteration, list(sampled), self._config)
            self._writer.submit(f"evaluation-{iteration:05d}.parquet", len(sampled), make)

    def failed(
        self,
        iteration: int,
        asked: Sequence[SampledQuestion],
        episodes: Sequence[TreeEpisode],
        statistics: MeanAndStd,
        question_ids: Collection[str],
    ) -> Path:
        """Writes the questions whose update ended the run, without the thread; returns the path of their file.

        Args:
            asked, episodes, statistics: as in `training`.
            question_ids: which questions to write.
        """
        pairs = zip(asked, _trained(asked, episodes), strict=True)
        chosen = [(question, episode) for question, episode in pairs if question.episode.id_ in question_ids]
        path = self._folder() / RECORD_FOLDER / f"{FAILED}-{iteration:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(training_table(iteration, chosen, self._config, statistics, FAILED), path)
        return path

    def close(self) -> None:
        """Waits until everything is written. A second call does nothing."""
        if writer := self.__dict__.get("_writer"):
            writer.close()


def is_chosen(question_id: str, share: float) -> bool:
    """Whether a training question is recorded; the choice is the same in every epoch and every run."""
    return rank(question_id) < share * 2**64


def rank(question_id: str) -> int:
    """The question's rank in [0, 2^64), a hash of its name. The questions with the lowest ranks are recorded."""
    return int.from_bytes(hashlib.blake2b(question_id.encode(), digest_size=8).digest(), "big")


def _trained(asked: Sequence[SampledQuestion], episodes: Sequence[TreeEpisode]) -> list[TreeEpisode | None]:
    """For each question the episode on which the update trains, which may come from a connector of the user."""
    own = {id(question.episode) for question in asked}
    kept = {id(episode) for episode in episodes}
    made = [episode for episode in episodes if id(episode) not in own]
    # A question may be asked twice in a batch. New episodes have the order of the old ones.
    new = {name: iter([episode for episode in made if episode.id_ == name]) for name in {one.id_ for one in made}}
    return [
        question.episode if id(question.episode) in kept else next(new.get(question.episode.id_, iter(())), None)
        for question in asked
    ]
