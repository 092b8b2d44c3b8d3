"""What the plots of runs by hand show."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from rllib_arpo.plots.iterations import draw_progress
from rllib_arpo.plots.run_data import COLUMNS, MissingDataError, RunData
from rllib_arpo.plots.trees import curves_by_stage, draw_entropy, draw_forks
from rllib_arpo.record.schema import SCHEMA

SETTINGS = {"entropy_window": 4, "entropy_normalization": "sum_log_vocab"}


def row(question: str = "a", agent: str = "0", depth: int | None = 0, tool: str | None = None, **changes) -> dict:
    """A turn of a training question of iteration 1; `tool`: the tool that answered before it."""
    fields = {
        "purpose": "training",
        "iteration": 1,
        "number": ord(question[0]),
        "question_id": question,
        "agent_id": agent,
        "parent": agent.rpartition(".")[0] or None,
        "accuracy": 0.0,
        "reward": 0.0,
        "turn": depth,
        "depth": depth,
        "entropies": [1.0],
        "after_tool": tool,
    }
    return fields | changes


def node(question: str, agent: str, depth: int, delta: float, children: int = 0, **changes) -> dict:
    """A turn after the tool "search", with the decision at its node."""
    decision = {"delta": delta, "children": children, "eligible": True}
    return row(question, agent, depth, **({"tool": "search"} | decision | changes))


def result(iteration: int, accuracy: float, reward: float, calls: int, evaluated: float | None = None) -> dict:
    """The result of an iteration."""
    rollout = {
        "accuracy": accuracy,
        "episode_return_mean": reward,
        "tool_calls_executed": 5 * iteration,
        "tool_calls_executed_lifetime": calls,
    }
    evaluation = {"env_runners": {"accuracy": evaluated, "episode_return_mean": 2 * (evaluated or 0)}}
    own = {"training_iteration": iteration, "env_runners": rollout}
    return own if evaluated is None else own | {"evaluation": evaluation}


def run_data(rows: Sequence[dict] = (), results: Sequence[dict] = ()) -> RunData:
    schema = pa.schema([SCHEMA.field(name) for name in COLUMNS])
    return RunData(results, pa.Table.from_pylist(list(rows), schema=schema).to_pandas(), SETTINGS if rows else {})


def legend(panel) -> list[str]:
    return [text.get_text() for text in panel.get_legend().get_texts()]


def test_learning_curves():
    """Before training one of two held-out questions is right, in a trajectory of two turns."""
    held_out = {"purpose": "evaluation", "iteration": 0}
    before = [
        row("a", depth=0, accuracy=1.0, reward=1.5, **held_out),
        row("a", depth=1, accuracy=1.0, reward=1.5, **held_out),
        row("b", depth=None, accuracy=0.0, reward=-1.0, **held_out),
    ]
    run = run_data(before, [result(1, 0.25, 0.5, 10), result(2, 0.5, float("nan"), 25, evaluated=0.75)])
    accuracy, reward, calls = draw_progress(run).axes
    assert [line.get_xydata().tolist() for line in accuracy.lines] == [[[1, 0.25], [2, 0.5]], [[0, 0.5], [2, 0.75]]]
    # The reward of iteration 2 is not known.
    assert [line.get_xydata().tolist() for line in reward.lines] == [[[1, 0.5]], [[0, 0.25], [2, 1.5]]]
    assert [line.get_xydata().tolist() for line in calls.lines] == [[[1, 5], [2, 10]]]
    assert accuracy.get_xlabel() == "iteration"
    assert [panel.get_ylabel() for panel in (accuracy, reward, calls)] == [
        "accuracy", "mean reward", "tool calls executed",
    ]  # fmt: skip
    assert legend(accuracy) == ["training, as sampled", "evaluation, held out"]


def test_the_entropy_by_token():
    """Forks are left out, and a question counts once."""
    run = run_data([
        row("a", "0", 0, entropies=[1.0, 2.0]),
        row("a", "0", 1, "search", entropies=[4.0, 0.0]),
        row("a", "1", 0, entropies=[3.0]),
        row("a", "0.0", 1, "search", entropies=[100.0]),
        row("b", "0", 0, entropies=[5.0, 6.0], iteration=3),
        row("b", "0", 1, "python", entropies=[7.0], iteration=3),
        # Nothing was measured, or nothing was sampled.
        row("b", "1", 0, entropies=None),
        row("b", "2", None, entropies=None),
        row("c", entropies=[0.5], purpose="evaluation", iteration=0),
        row("c", entropies=[0.25], purpose="evaluation", iteration=4),
    ])  # fmt: skip
    found = curves_by_stage(run)
    means = {stage: {name: curve.mean.tolist() for name, curve in curves.items()} for stage, curves in found.items()}
    assert means == {
        "evaluation before training": {"start": [0.5]},
        "evaluation after 4 updates": {"start": [0.25]},
        # Question "a" counts by the mean of its two samples.
        "training, iterations 1 to 3": {
            "start": [(2.0 + 5.0) / 2, (2.0 + 6.0) / 2], "tool python": [7.0], "tool search": [4.0, 0.0],
        },
    }  # fmt: skip
    before, _after, training = draw_entropy(run).axes
    assert before.get_title() == "evaluation before training"
    start, _python, search = training.lines
    # A curve ends where fewer turns go on (`evaluation/entropy_figure.py`): only two of three have a second token.
    assert (start.get_xydata().tolist(), search.get_xydata().tolist()) == ([[1, 3.5]], [[1, 4.0], [2, 0.0]])
    assert legend(training) == ["start (3 turns)", "after python (1 turns)", "after search (1 turns)"]


def test_the_forks():
    run = run_data([
        # Two questions; one node of three at depth 1 has two children.
        node("a", "0", 1, 0.5, children=2),
        node("a", "1", 1, 0.1),
        node("b", "0", 1, 0.1),
        node("b", "0", 2, 0.9, eligible=False),
        # Asked again in the same batch, the question counts again.
        node("a", "0", 1, 0.5, children=1, number=5),
        # Greedy evaluations have no forks.
        node("c", "0", 1, 0.5, purpose="evaluation"),
    ])  # fmt: skip
    count, share = draw_forks(run).axes
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in count.patches]
    np.testing.assert_allclose(bars, [(1.0, 1.0), (2.0, 0.0)])
    # No node at depth 2 was decided while budget remained.
    np.testing.assert_allclose([bar.get_height() for bar in share.patches], [1 / 2, np.nan])


@pytest.mark.parametrize(("draw", "run", "sentence"), [
    (draw_progress, run_data(), "No result of the run has an accuracy or a reward."),
    (draw_entropy, run_data(),
     "The run has no record of its trees (record_share=None, or nothing was recorded yet)."),
    (draw_entropy, run_data([row(entropies=None)]), "No recorded turn has an entropy."),
    (draw_forks, run_data(), "The record has no training question: set a larger record_share."),
    (draw_forks, run_data([row()]), "No recorded training question was forked."),
])  # fmt: skip
def test_a_run_without_the_data_of_a_plot(draw, run, sentence):
    with pytest.raises(MissingDataError) as error:
        draw(run)
    assert str(error.value) == sentence
