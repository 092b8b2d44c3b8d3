"""Runs by hand: rows of a record and results of iterations."""

from collections.abc import Sequence

import pyarrow as pa

from rllib_arpo.plots.run_data import EMPTY_RECORD, RunData

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
        "delta": None,
        "eligible": None,
        "children": None,
    }
    assert not changes.keys() - fields.keys()
    return fields | changes


def node(question: str, agent: str, depth: int, delta: float, children: int = 0, **changes) -> dict:
    """A turn after the tool "search", with the decision at its node."""
    decision = {"delta": delta, "children": children, "eligible": True}
    return row(question, agent, depth, **({"tool": "search"} | decision | changes))


def result(iteration: int, accuracy: float, reward: float, calls: int, evaluated: float | None = None, **more) -> dict:
    """The result of an iteration."""
    rollout = {"accuracy": accuracy, "episode_return_mean": reward, "tool_calls_executed_lifetime": calls}
    evaluation = {"env_runners": {"accuracy": evaluated, "episode_return_mean": 2 * (evaluated or 0)}}
    own = {"training_iteration": iteration, "env_runners": rollout} | more
    return own if evaluated is None else own | {"evaluation": evaluation}


def run_data(rows: Sequence[dict] = (), results: Sequence[dict] = ()) -> RunData:
    return RunData(results, pa.Table.from_pylist(list(rows), schema=EMPTY_RECORD.schema), SETTINGS if rows else {})
