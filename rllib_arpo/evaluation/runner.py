"""Asks the questions of an arm with the sampler, the environment and the tools of training, in this process.

The parts are those that an env runner is made of: an engine in a thread of its own, and a `QuestionLoop` that keeps
many questions in flight. Neither Ray nor a learner takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rllib_arpo.engine import make_engine
from rllib_arpo.engine.engine import Engine, EngineConfig
from rllib_arpo.engine.engine_thread import EngineThread
from rllib_arpo.evaluation.errors import command_errors
from rllib_arpo.evaluation.plan import Arm, EvaluationSettings
from rllib_arpo.evaluation.records import QuestionRecord, question_record
from rllib_arpo.rollout.questions import QuestionLoop


@contextmanager
def running_engine(
    arms: Sequence[Arm], settings: EvaluationSettings, num_threads: int | None
) -> Iterator[tuple[Engine, EngineThread]]:
    """The engine of the one model that all `arms` are about, and the thread that owns it.

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
    settings: EvaluationSettings,
    *,
    in_flight: int,
    on_progress: Callable[..., None],
) -> Iterator[QuestionRecord]:
    """Yields the questions with these numbers, each as soon as it has ended.

    Args:
        in_flight: how many questions are worked on at a time.
        on_progress: as in `QuestionLoop`.
    """
    env, rollout = arm.first_env, arm.rollout_settings(settings)
    envs = [env, *(env.another() for _ in range(min(in_flight, len(numbers)) - 1))]
    with QuestionLoop(engine, thread, on_progress) as loop:
        loop.submit(numbers, envs, rollout, evaluation=True)
        while loop.in_flight:
            for sampled in loop.take():
                yield question_record(sampled, env, rollout)
