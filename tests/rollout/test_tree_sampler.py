"""Golden trees: the sampler's trees for scripted generations (docs/design.md, "Adaptive rollout", rules 1 to 6)."""

import re

import numpy as np
import pytest

from rllib_arpo.core.figures import examined_nodes
from rllib_arpo.core.tree import ForkDecision
from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.envs.errors import ContractError
from rllib_arpo.envs.forkable_env import OPTION_NUM_ROOTS
from tests.helpers.scripted_env import ANSWER, PROMPT, TOOL, ScriptedEnv
from tests.helpers.scripts import answer, tool
from tests.rollout.conftest import ended, settings

LOW, HIGH = 1.0, 3.0
#: What has been read and written behind the first response, of a root that begins with token 10.
NODE = (*PROMPT, 10, TOOL, 50, 0)


def test_rise_after_a_tool_forks_once_and_the_parent_goes_on(sample_tree):
    script = {
        PROMPT: tool(10),
        NODE: [answer(20, HIGH), answer(21, LOW)],
    }
    sampled = sample_tree(script, {"rewards": {"0": 1.0, "0.0": 0.5}})
    assert sampled.shape() == {
        "0": (None, 0, [(10, TOOL), (20, ANSWER)], "answer"),
        "0.0": ("0", 1, [(21, ANSWER)], "answer"),
    }
    assert sampled.tree.returns().tolist() == [1.0, 0.5]
    assert sampled.env.forks == [("0", "0.0")]
    rise = (HIGH - LOW) / np.log(256)
    assert sampled.decisions == {
        ("0", 1): ForkDecision(
            level=pytest.approx(HIGH / np.log(256)),
            delta=pytest.approx(rise),
            probability=pytest.approx(0.5 + 0.2 * rise),
            eligible=True,
            children=1,
            budget=1,
        )
    }
    assert sampled.prefix_tokens_reused == 6


def test_fork_is_submitted_while_the_parent_still_generates(sample_tree):
    script = {
        PROMPT: tool(10),
        NODE: [ScriptedReply([20] * 30 + [ANSWER], entropies=HIGH), answer(21)],
    }
    sampled = sample_tree(script, num_rollouts=2)
    assert [r.request_id for r in sampled.engine.submitted] == ["training/0/0/0", "training/0/0/1", "training/0/0.0/1"]
    # Two steps for the first turn, one for the window, two for the fork; its parent needs 31 for its own turn.
    assert sampled.engine.num_steps < 2 + 31 + 5


def test_decisions_look_at_the_window_where_all_entropies_are_recorded(sample_tree):
    """The first turn after a tool is certain within the window and unsure beyond it; the second rises within it."""
    later = (*NODE, 20, 21, 22, TOOL, 50, 1)
    script = {
        PROMPT: [tool(10), answer(90)],
        NODE: ScriptedReply([20, 21, 22, TOOL], entropies=[0.5, 0.75, 9.0, 9.0]),
        later: [answer(30, HIGH), answer(31)],
    }
    everything, windows = (
        sample_tree(script, entropy_window=2, num_rollouts=3, record_entropies=kind) for kind in ("all", "windows")
    )
    assert everything.shape() == windows.shape()
    assert list(windows.shape()) == ["0", "0.0", "1"]
    nodes = examined_nodes(everything.tree, 2)
    assert nodes == examined_nodes(windows.tree, 2)
    assert [node.entropy for node in nodes] == [0.625, HIGH]
    entropies = [[turn.entropies.tolist() for turn in s.tree.trajectories[0].turns] for s in (everything, windows)]
    assert entropies[0] == [[LOW, LOW], [0.5, 0.75, 9.0, 9.0], [HIGH, HIGH]]
    assert entropies[1] == [[LOW, LOW], [0.5, 0.75], [HIGH, HIGH]]


def test_without_a_window_nothing_is_measured(sample_tree):
    script = {PROMPT: tool(10), NODE: answer(20)}
    found = sample_tree(script, entropy_window=0, num_rollouts=1, branching="never", record_entropies="windows")
    assert [turn.decision for turn in found.tree.trajectories[0].turns] == [None, None]


def test_deadline_ends_only_who_has_not_ended(sample_tree):
    changes = {"num_rollouts": 2, "num_initial_rollouts": 2, "question_deadline_s": 2.0}
    sampled = sample_tree({PROMPT: [answer(10), tool(11)]}, {"delays": {("1", 0): 60.0}}, **changes)
    assert sampled.shape() == {
        "0": (None, 0, [(10, ANSWER)], "answer"),
        "1": (None, 0, [(11, TOOL)], "deadline"),
    }
    assert [t.counts for t in sampled.tree.trajectories] == [True, False]
    # The turn is whole, but the environment did not answer.
    assert [t.turns[0].times.answered is None for t in sampled.tree.trajectories] == [False, True]


def test_progress_has_the_tokens_and_the_tools_in_flight_also_of_those_that_a_deadline_ends(sample_tree):
    script = {PROMPT: [tool(10)], NODE: tool(20)}
    env_config = {"delays": {("0", 1): 60.0}}
    sampled = sample_tree(script, env_config, num_rollouts=1, branching="never", question_deadline_s=2.0)
    assert sampled.progress == [{"tokens": 2}, {"tools": 1}, {"tools": -1}] * 2


def test_limits_bound_every_request(sample_tree):
    script = {PROMPT: tool(10), NODE: answer(20, 0.0)}
    sampled = sample_tree(script, num_rollouts=1, max_context_tokens=20, max_response_tokens=12, max_turn_tokens=9)
    assert [r.max_tokens for r in sampled.engine.submitted] == [9, 8]
    assert [r.stop for r in sampled.engine.submitted] == [("stop",), ("stop",)]


def test_an_environment_that_forks_other_tokens_is_named(sample_tree, monkeypatch):
    monkeypatch.setattr(ScriptedEnv, "fork_agent", lambda self, parent, child: np.array([1, 2]))
    with pytest.raises(ExceptionGroup) as raised:
        sample_tree({PROMPT: tool(10), NODE: [answer(20, HIGH)]})
    assert raised.group_contains(ValueError, match="ScriptedEnv, question 0, forked agent 0.0 with 2 tokens")


def test_trajectories_do_not_wait_for_a_slow_tool_of_another(sample_tree):
    """The tool of "0" takes half a second; the others submit all their turns meanwhile."""
    script = {
        PROMPT: tool(10),
        NODE: tool(20),
        (*NODE, 20, TOOL, 50, 1): answer(30),
    }
    sampled = sample_tree(script, {"delays": {("0", 0): 0.5}}, num_rollouts=3, num_initial_rollouts=3)
    assert [r.request_id.removeprefix("training/0/") for r in sampled.engine.submitted] == [
        "0/0", "1/0", "2/0", "1/1", "2/1", "1/2", "2/2", "0/1", "0/2",
    ]  # fmt: skip
    times = {t.agent_id: [turn.times for turn in t.turns] for t in sampled.tree.trajectories}
    assert 0.5 <= times["0"][0].answered - times["0"][0].generated < 5.0
    assert times["1"][2].answered < times["0"][0].answered <= times["0"][1].started
    assert all(0 <= t.started <= t.generated <= t.answered for turns in times.values() for t in turns)


class Begins(ScriptedEnv):
    """Begins with as many agents as it likes."""

    def __init__(self, num_roots):
        super().__init__({})
        self._num_roots = num_roots

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options | {OPTION_NUM_ROOTS: self._num_roots})


@pytest.mark.parametrize(("num_roots", "begun"), [(0, "none"), (1, "0"), (3, "0, 1, 2")])
def test_an_environment_that_begins_with_other_agents_than_it_is_asked_for_ends_the_run(num_roots, begun):
    """With more than M the sampler would top up for ever."""
    sentence = f"Begins, question 0, began with agents {begun}: not num_roots=2."
    with pytest.raises(ContractError, match=f"^{re.escape(sentence)}$"):
        ended(lambda *_: answer(7), 256, [0], [Begins(num_roots)], settings(num_initial_rollouts=2))
