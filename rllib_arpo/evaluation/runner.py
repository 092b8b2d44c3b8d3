"""Asks the questions of an evaluation with the sampler, the environment and the tools of training, in this process.

It needs no Ray and no learner, only two parts of an env runner: an engine in its own thread, and a `QuestionLoop` that
keeps many questions in flight. It records questions like training does, with their answers and scores.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rllib_arpo.core.tree import QuestionTree, Trajectory
from rllib_arpo.engine import make_engine
from rllib_arpo.engine.engine import Engine, EngineConfig
from rllib_arpo.engine.engine_thread import EngineThread
from rllib_arpo.engine.scripted_engine import ScriptedEngine
from rllib_arpo.envs.protocols.protocol import Answer
from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.rewards import exact_match, token_f1
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.errors import CHECKS, command_errors
from rllib_arpo.evaluation.arguments import TRAJECTORIES_IN_FLIGHT, chosen_tasks, read_env_configs, read_settings
from rllib_arpo.evaluation.model_folders import resolve_models
from rllib_arpo.evaluation.plan import Arm, EvaluationSettings, check_tasks, make_arms
from rllib_arpo.evaluation.results import StoredArm, stored_arm
from rllib_arpo.record.question import BenchmarkAnswer, QuestionFacts, RecordedQuestion
from rllib_arpo.record.schema import BENCHMARK
from rllib_arpo.record.tables import stated
from rllib_arpo.rollout.messages import FailedQuestion, Purpose, SampledQuestion, question_refs
from rllib_arpo.rollout.progress import RolloutProgress
from rllib_arpo.rollout.question_loop import QuestionLoop
from rllib_arpo.rollout.settings import RolloutSettings
from rllib_arpo.tracking.iteration_log import warn_of_errors
from rllib_arpo.tracking.machine import commit


def recorded(sampled: SampledQuestion, arm: Arm, code: str | None, settings: Mapping[str, Any]) -> RecordedQuestion:
    """A question that an environment of the arm sampled without forks, with its answers and their scores.

    Args:
        code: the commit of this package.
        settings: the settings to state in the record.
    """
    env, tree = arm.first_env, sampled.tree
    question = env.task.question(sampled.number, tuple(env.tools))

    def scored(trajectory: Trajectory) -> BenchmarkAnswer:
        answer = _answer(tree, trajectory.agent_id, env)
        exact, f1 = _scores(answer, trajectory, question)
        return BenchmarkAnswer(
            task=arm.task,
            model=arm.model.name,
            commit=code,
            question=question.asked or env.tokenizer.decode(tree.prompt),
            answers=list(question.answers),
            ability=question.ability,
            answer=answer,
            exact_match=exact,
            f1=f1,
        )

    facts = QuestionFacts(BENCHMARK, 0, sampled.number, sampled.seconds)
    answers = {trajectory.agent_id: scored(trajectory) for trajectory in tree.trajectories}
    return RecordedQuestion.decoded(tree, facts, env.tokenizer, settings, answers=answers)


def _scores(answer: str | None, trajectory: Trajectory, question: Question) -> tuple[float, float | None]:
    """Exact match, and F1 for questions of knowledge with right answers; both are 0 if the format is wrong."""
    if question.ability != QA or not question.answers:
        return float(trajectory.accuracy >= 1.0), None
    if answer is None or not trajectory.format_valid:
        return 0.0, 0.0
    return exact_match(answer, question.answers), max(token_f1(answer, alias) for alias in question.answers)


def _answer(tree: QuestionTree, agent_id: str, env: ToolEnv) -> str | None:
    turns = list(tree.path(agent_id))
    if not turns:
        return None
    read = turns[-2].observation if turns[1:] else tree.prompt
    parsed = env.protocol.parse(env.chat.turn_text(read, turns[-1].token_ids, keep=env.protocol.end_tags))
    return parsed.text if isinstance(parsed, Answer) else None


@contextmanager
def answered(
    args: argparse.Namespace, models: Sequence[str]
) -> Iterator[tuple[EvaluationSettings, Path, list[tuple[Arm, StoredArm]]]]:
    """Asks every question of a command line that has no answer yet; gives the settings, the folder and its arms.

    Args:
        args: has the arguments of `add_sampling_arguments`, and `output`.
        models: as the user wrote them.

    Raises:
        CommandError: the command line or the data is wrong, or the folder has results of another evaluation.
    """
    with command_errors((*CHECKS, OSError)):
        settings, own, tasks = read_settings(args), read_env_configs(args), chosen_tasks(args)
        check_tasks(tasks, own, settings)
        folder = Path(args.output)
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="exported-", dir=folder) as exported:
        found = resolve_models(models, Path(exported), settings.dtype)
        arms = make_arms(found, tasks, own, settings)
        stored = [(arm, stored_arm(folder, arm, settings)) for arm in arms]
        missing = [(arm, results, sorted(set(arm.numbers) - results.numbers())) for arm, results in stored]
        in_flight = args.questions_in_flight or max(1, TRAJECTORIES_IN_FLIGHT // settings.samples)
        for model in found:
            if of_model := [each for each in missing if each[0].model == model and each[2]]:
                ask_model(of_model, settings, in_flight)
        yield settings, folder, stored


def ask_model(
    missing: Sequence[tuple[Arm, StoredArm, Sequence[int]]], settings: EvaluationSettings, in_flight: int
) -> None:
    """Asks one model the missing questions of its arms, and stores them.

    Args:
        missing: each arm with its folder and the numbers of its missing questions, at least one.
        in_flight: how many questions are in progress at a time.

    Raises:
        CommandError: the engine refuses the model or its arguments, or is not installed.
    """
    arms, warned = [arm for arm, _, _ in missing], set[object]()
    config = EngineConfig(
        model_name_or_path=arms[0].model.path,
        dtype=settings.dtype,
        max_context_tokens=max(arm.first_env.config.max_context_tokens for arm in arms),
        seed=settings.seed,
        engine_kwargs=dict(settings.engine_kwargs),
    )
    thread, code = EngineThread(), commit()
    with command_errors():
        engine = thread.call(make_engine, settings.engine, config, timeout_s=None)
    try:
        for arm, stored, numbers in missing:
            print(f"{arm.task}, {arm.model.label}: {len(numbers)} of {len(arm.numbers)} questions to ask.", flush=True)
            rollout = arm.rollout_settings(settings)
            if isinstance(engine, ScriptedEngine):
                engine.play(arm.first_env)
            in_record = stated(arm.model.name, rollout)
            progress = RolloutProgress(f"{arm.task}, {arm.model.label}")
            progress.begin(len(numbers))
            try:
                for sampled in ask(arm, numbers, engine, thread, rollout, in_flight, progress.update):
                    stored.add(recorded(sampled, arm, code, in_record))
                    warn_of_errors([sampled], warned)
            finally:
                progress.end()
    finally:
        thread.call(engine.close)
        thread.shutdown()


def ask(
    arm: Arm,
    numbers: Sequence[int],
    engine: Engine,
    thread: EngineThread,
    rollout: RolloutSettings,
    in_flight: int,
    on_progress: Callable[..., None],
) -> Iterator[SampledQuestion]:
    """Yields the questions with these numbers, each as soon as it has ended.

    Args:
        in_flight: how many questions are in progress at a time.
        on_progress: as in `QuestionLoop`.

    Raises:
        RuntimeError: the environment failed outside any trajectory; the message has the traceback.
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
