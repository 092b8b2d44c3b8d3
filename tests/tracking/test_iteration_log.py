"""An iteration's result, from the trees of its questions, by hand."""

import logging
import math
from dataclasses import replace

import numpy as np
import pytest
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_arpo.core.metric import measure
from rllib_arpo.core.tree import QuestionTree, StopReason, ToolCall, ToolStatus, Trajectory, Turn
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.messages import QuestionRef, SampledQuestion, TrajectoryError
from rllib_arpo.rollout.metric_table import BATCH_METRICS, rollout_metrics
from rllib_arpo.rollout.question_stream import Batch
from rllib_arpo.tracking.iteration_log import IterationLog
from tests.helpers.trees import paid

SEARCH = ToolCall("search", ToolStatus.OK, 0.25)
PYTHON = ToolCall("python", ToolStatus.ERROR, 1.5)


def sampled(*calls: ToolCall | None, errors: tuple[TrajectoryError, ...] = ()) -> SampledQuestion:
    """A question of one trajectory with reward 0.5, which makes these calls, in turns of two tokens."""
    tokens, nothing = np.ones(2, np.int32), np.zeros(0, np.int32)
    turns = tuple(
        Turn(tokens, np.float32([-1, -1]), np.float32([]), tokens if call else nothing, 0 * tokens, call)
        for call in calls
    )
    tree = QuestionTree("q", tokens, (Trajectory("0", paid(turns, 0.5), StopReason.ANSWER),))
    return SampledQuestion(QuestionRef(7), TreeEpisode(tree), errors=errors, tools_offered=("search", "python"))


def iterations(*batches: list[SampledQuestion]) -> list[dict]:
    """`env_runners` of the result of each iteration."""
    logger = MetricsLogger(root=True)
    log, results = IterationLog(logger), []
    for batch in batches:
        of_batch = measure(BATCH_METRICS, Batch(batch, batch, 0, 0, 0, 0, 0, 0))
        log.rollout(rollout_metrics(batch, seconds=2.0) | of_batch)
        results.append(logger.reduce()["env_runners"])
    return results


def calls_of(result: dict) -> dict[str, float]:
    return {name: metrics["calls"] for name, metrics in result["tools"].items()}


def test_a_tool_has_zero_calls_in_an_iteration_without_one():
    """Before it is called for the first time, and after, when RLlib has a metric of that name already."""
    first, second, third = iterations([sampled(SEARCH, None)], [sampled(PYTHON, PYTHON, None)], [sampled(None)])
    assert first["tools"]["python"] == {"calls": 0, "errors": 0, "timeouts": 0}
    assert first["tools"]["search"] == {
        "calls": 1, "errors": 0, "timeouts": 0, "latency_p50": 0.25, "latency_p99": 0.25,
    }  # fmt: skip
    assert calls_of(second) == {"search": 0, "python": 2}
    assert (second["tools"]["python"]["errors"], second["tools"]["python"]["latency_p50"]) == (2, 1.5)
    assert calls_of(third) == {"search": 0, "python": 0}
    # A mean over nothing is RLlib's NaN, not a latency of 0.
    assert math.isnan(third["tools"]["search"]["latency_p50"])


FULL = TrajectoryError("0", "python", "OSError", "no space", "python.py, line 3", StopReason.ERROR)


def test_an_error_is_told_once_for_each_cause(caplog):
    other = TrajectoryError("1", "", "BrokenToolError", "no key", "judge.py, line 5", StopReason.BROKEN_TOOL)
    again = replace(other, agent_id="2", text="a wrong key")
    refused = TrajectoryError("0.0", "", "OSError", "no \x1b[2Jcopy", "env.py, line 1", None)
    log = IterationLog(MetricsLogger(root=True))
    with caplog.at_level(logging.WARNING, "rllib_arpo"):
        log.errors([sampled(None, errors=(FULL, FULL))], 0, 1.0)
        log.errors([sampled(None, errors=(FULL, other, again, refused))], 0, 1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "training question 7, trajectory 0: the tool 'python' raised OSError: no space (python.py, line 3). "
        "Such trajectories are masked (stop/error).",
        "training question 7, trajectory 1: the environment raised BrokenToolError: no key (judge.py, line 5). "
        "Such trajectories are masked (stop/broken_tool).",
        "training question 7, trajectory 0.0: the environment raised OSError: no \\x1b[2Jcopy (env.py, line 1). "
        "The question gets no more forks (forks_refused).",
    ]


def ended(*reasons: StopReason, format_valid: bool = False, accuracy: float = 0.0, **changes) -> SampledQuestion:
    """A question whose trajectories ended so."""
    question = sampled(None, **changes)
    [one] = question.tree.trajectories
    trajectories = tuple(
        replace(one, agent_id=str(i), stop_reason=reason, format_valid=format_valid, accuracy=accuracy)
        for i, reason in enumerate(reasons)
    )
    return replace(question, episode=TreeEpisode(replace(question.tree, trajectories=trajectories)))


def test_most_trajectories_in_error_end_the_run():
    log = IterationLog(MetricsLogger(root=True))
    half = [ended(StopReason.ERROR, StopReason.ANSWER, errors=(FULL,))]
    log.errors(half, 0, 0.5)
    with pytest.raises(RuntimeError) as raised:
        log.errors([*half, ended(StopReason.BROKEN_TOOL)], 0, 0.5)
    assert str(raised.value) == (
        "67% of the trajectories ended in an error (max_error_share=0.5), for example: trajectory 0: the tool 'python' "
        "raised OSError: no space (python.py, line 3)."
    )
    log.errors(half, 1, 0.5)
    with pytest.raises(RuntimeError, match=r"^2 of 3 questions could not be asked \(max_error_share=0\.5\); the log"):
        log.errors(half, 2, 0.5)
    # The most frequent cause of those that the share counts, whichever trajectory and question.
    refused = TrajectoryError("0.0", "", "OSError", "no copy", "env.py, line 1", None)
    judges = tuple(
        TrajectoryError(str(i), "", "BrokenToolError", f"no key {i}", "judge.py, line 5", StopReason.BROKEN_TOOL)
        for i in range(2)
    )
    broken = ended(StopReason.BROKEN_TOOL, StopReason.BROKEN_TOOL, errors=(*3 * [refused], *judges))
    with pytest.raises(RuntimeError, match=r"^75% .*, for example: trajectory 0: the .* BrokenToolError: no key 0 \("):
        log.errors([*half, broken], 0, 0.5)
    # An environment of one's own may not say why.
    with pytest.raises(RuntimeError, match=r"^100% .*, for example: stop/broken_tool\.$"):
        log.errors([ended(StopReason.BROKEN_TOOL, errors=(refused,))], 0, 0.5)


@pytest.mark.parametrize(
    ("question", "cause"),
    [
        (ended(StopReason.DEADLINE, StopReason.DEADLINE, StopReason.ANSWER), "are masked (stop/deadline)."),
        (ended(StopReason.MALFORMED_CALL), "break the format (stop/malformed_call): cold-start the model, or "),
        (ended(StopReason.ANSWER, format_valid=True, accuracy=1.0), "the questions are too easy: ask others, or "),
        (ended(StopReason.ANSWER, format_valid=True), "the questions are too hard or the policy has collapsed: "),
    ],
)
def test_no_signal_warns_and_then_ends_the_run(caplog, question, cause):
    log = IterationLog(MetricsLogger(root=True))
    with caplog.at_level(logging.WARNING, "rllib_arpo"):
        for has_signal in (False, False, True, False, False):
            log.signal([question], has_signal, 5)
        assert caplog.messages == []
        log.signal([question], False, 5)
        log.signal([question], False, 5)
    [warning] = caplog.messages
    assert warning.startswith("No question has rewards that differ, for 3 iterations in a row: ")
    assert cause in warning
    with pytest.raises(
        RuntimeError, match=r"^No question .* for 5 iterations in a row \(max_iterations_without_signal\)"
    ):
        log.signal([question], False, 5)
    log.signal([question], False, None)
    with pytest.raises(
        RuntimeError, match=r"^No question has rewards that differ, for an iteration \(max_iterations_with"
    ):
        IterationLog(MetricsLogger(root=True)).signal([question], False, 1)
