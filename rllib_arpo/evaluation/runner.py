"""Asks the questions of an arm with the sampler, the environment and the tools of training, in this process.

It uses the parts of an env runner: an engine in its own thread, and a `QuestionLoop` that keeps many questions in
flight. It needs neither Ray nor a learner.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rllib_arpo.engine import make_engine
from rllib_arpo.engine.engine import Engine, EngineConfig
from rllib_arpo.engine.engine_thread import EngineThread
from rllib_arpo.errors import command_errors
from rllib_arpo.evaluation.answers import answered_rows
from rllib_arpo.evaluation.plan import Arm, EvaluationSettings
from rllib_arpo.evaluation.results import StoredArm
from rllib_arpo.record.settings import stated
from rllib_arpo.rollout.messages import FailedQuestion, Purpose, SampledQuestion, question_refs
from rllib_arpo.rollout.progress import PROGRESS_VARIABLE, RolloutProgress
from rllib_arpo.rollout.question_loop import QuestionLoop
from rllib_arpo.rollout.settings import RolloutSettings
from rllib_arpo.tracking.machine import commit

#: Key of a record's settings: the number of tokens that the model knows, V.
VOCAB_SIZE = "vocab_size"


@contextmanager
def running_engine(
    arms: Sequence[Arm], settings: EvaluationSettings, num_threads: int | None
) -> Iterator[tuple[Engine, EngineThread]]:
    """The engine of the one model that all `arms` evaluate, and the thread that owns it.

    Raises:
        CommandError: the engine refuses the model or its arguments, or is not installed.
    """
    config = EngineConfig(
        model_name_or_path=arms[0].model.path,
        dtype=settings.dtype,
        max_context_tokens=max(arm.first_env.config.max_context_tokens for arm in arms),
        num_threads=num_threads,
        seed=settings.seed,
        engine_kwargs=dict(settings.engine_kwargs),
    )
    thread = EngineThread()
    with command_errors():
        engine = thread.call(make_engine, settings.engine, config, timeout_s=None)
    try:
        yield engine, thread
    finally:
        thread.call(engine.close)
        thread.shutdown()


def ask(
    arm: Arm,
    numbers: Sequence[int],
    engine: Engine,
    thread: EngineThread,
    rollout: RolloutSettings,
    *,
    in_flight: int,
    on_progress: Callable[..., None],
) -> Iterator[SampledQuestion]:
    """Yields the questions with these numbers, each as soon as it has ended.

    Raises:
        RuntimeError: the environment raised an error that belongs to no trajectory; the message has the traceback.

    Args:
        in_flight: the number of questions in progress at a time.
        on_progress: as in `QuestionLoop`.
    """
    env = arm.first_env
    others = (env.another() for _ in range(min(in_flight, len(numbers)) - 1))
    envs = [env, *(other for other in others if other is not None)]
    with QuestionLoop(engine, thread, on_progress) as loop:
        loop.submit(question_refs(numbers, Purpose.EVALUATION), envs, rollout)
        while loop.in_flight:
            for ended in loop.take():
                if isinstance(ended, FailedQuestion):
                    raise RuntimeError(f"{arm.task}, question {ended.ref.number}: {ended.failure.traceback}")
                yield ended


def answer(
    arms: Sequence[tuple[Arm, StoredArm]],
    settings: EvaluationSettings,
    *,
    in_flight: int,
    num_threads: int | None,
    progress: str | None,
) -> None:
    """Asks the questions that these arms of one model have not answered yet, and stores them.

    Args:
        arms: each with what the folder of results has of it.
        in_flight: the number of questions in progress at a time.
        progress: how to show it, as in `showing_progress`.
    """
    missing = [(arm, stored, sorted(set(arm.numbers) - stored.numbers())) for arm, stored in arms]
    waiting = [each for each in missing if each[2]]
    if not waiting:
        return
    code = commit()
    with running_engine([arm for arm, _, _ in waiting], settings, num_threads) as (engine, thread):
        for arm, stored, numbers in waiting:
            print(f"{arm.task}, {arm.label}: {len(numbers)} of {len(arm.numbers)} questions to ask.", flush=True)
            rollout = arm.rollout_settings(settings)
            states = stated(arm.model.name, rollout) | {VOCAB_SIZE: engine.vocab_size}
            with showing_progress(arm, len(numbers), progress) as on_progress:
                options: dict[str, Any] = {"in_flight": in_flight, "on_progress": on_progress}
                for sampled in ask(arm, numbers, engine, thread, rollout, **options):
                    stored.add(sampled.number, answered_rows(sampled, arm, rollout, code), states)


@contextmanager
def showing_progress(arm: Arm, num_questions: int, mode: str | None) -> Iterator[Callable[..., None]]:
    """Shows the progress of an arm as `mode` says: by default a bar on a terminal, and occasional lines elsewhere."""
    default = os.environ.get(PROGRESS_VARIABLE) or ("bar" if sys.stderr.isatty() else "lines")
    progress = RolloutProgress(f"{arm.task}, {arm.label}", enabled=mode or default)
    progress.begin(num_questions)
    try:
        yield progress.update
    finally:
        progress.end()
