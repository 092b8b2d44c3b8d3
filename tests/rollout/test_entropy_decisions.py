"""Decisions by the entropies of other questions, and of the first root: running baseline, pre-monitoring, penalty."""

import numpy as np
import pytest

from rllib_arpo import ARPOConfig
from rllib_arpo.core.rollout_history import NO_HISTORY, EarlierQuestion, RolloutHistory, RolloutReference
from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.rollout.settings import rollout_reference
from tests.helpers.scripted_env import ANSWER, PROMPT, TOOL, ScriptedEnv
from tests.helpers.scripts import answer, by_prefix, tool
from tests.rollout.conftest import ended, settings

NODE = (*PROMPT, 10, TOOL, 50, 0)
LN_V = np.log(256)
HISTORY = RolloutReference({"tool": 0.5 * LN_V}, after_tool=0.5 * LN_V)


@pytest.mark.parametrize(("earlier", "level", "forks"), [
    ({"tool": 0.5, "other": 0.0}, 0.5, 1),
    ({"tool": 0.7, "other": 0.0}, 0.7, 0),
    # Without a history of its own a tool is compared with the opening.
    ({"other": 0.0}, 3.0, 0),
])  # fmt: skip
def test_the_running_baseline_is_that_of_the_same_tool_in_earlier_questions(sample_tree, earlier, level, forks):
    """The entropy falls below the opening, and is above or below what this tool's responses left before."""
    script = {PROMPT: [tool(10, 3.0), answer(11)], NODE: [answer(20, 0.6), answer(21)]}
    reference = RolloutReference(earlier, after_tool=0.3)
    sampled = sample_tree(dict(script), entropy_baseline="running", rollout_reference=reference)
    decision = sampled.decisions[("0", 1)]
    assert decision.delta == pytest.approx((0.6 - level) / LN_V)
    assert decision.level == pytest.approx(0.6 / LN_V)
    assert decision.children == forks
    assert sample_tree(dict(script), rollout_reference=reference).decisions[("0", 1)].children == 0


@pytest.mark.parametrize(
    ("rises_at", "forks"), [({}, [1, 0]), ({1: [-1.0], 2: [1.0]}, [0, 1]), ({2: [1.0]}, [1, 1]), ({1: [-1.0]}, [0, 0])]
)
def test_permuted_forks_where_earlier_questions_had_a_rise_at_this_depth(sample_tree, rises_at, forks):
    """The entropy rises at the first response, and not at the second."""
    script = {
        PROMPT: [tool(10, 1.0), *(answer(11) for _ in range(2))],
        NODE: [tool(20, 2.0), *(answer(21) for _ in range(2))],
        (*NODE, 20, TOOL, 50, 1): [answer(30, 0.5), *(answer(31) for _ in range(2))],
    }
    sampled = sample_tree(
        script, num_rollouts=3, branching="permuted", rollout_reference=RolloutReference(rises_at=rises_at)
    )
    assert [sampled.decisions["0", depth].children for depth in (1, 2)] == forks
    # The node's own rise is what is recorded, and what later questions draw from.
    history = RolloutHistory(1)
    history.extend([EarlierQuestion.of(sampled.tree, entropy_window=1)])
    rises = {depth: [sampled.decisions["0", depth].delta] for depth in (1, 2)}
    assert rises[1][0] > 0 > rises[2][0]
    config = ARPOConfig().adaptive_rollout(branching="permuted")
    assert rollout_reference(history, config).rises_at == rises


def test_depth_forks_each_root_at_its_second_response(sample_tree):
    """The next responses, the children's as well, do not fork."""

    def three_calls(request, _times_asked):
        return tool(10) if request.prompt_token_ids.count(50) < 3 else answer(11)  # 50 begins a response.

    sampled = sample_tree(
        three_calls, num_rollouts=8, num_initial_rollouts=2, branching="depth", branch_depth=2, branch_width=3
    )
    trajectories = sampled.tree.trajectories
    assert [t.agent_id for t in trajectories] == ["0", "0.0", "0.1", "0.2", "1", "1.0", "1.1", "1.2"]
    assert {t.num_inherited_turns for t in trajectories if t.parent is not None} == {2}
    assert {len(t.turns) for t in trajectories if t.parent is not None} == {2}


@pytest.mark.parametrize(
    ("reference", "root_entropy", "num_tokens", "num_roots"),
    [
        # M = 8, beta = 2, H_tool = 0.5: sigma(2 (H_root - 0.5)) of H_root = 0, 0.5, 1 is 0.269, 0.5, 0.731.
        *((HISTORY, root_entropy, 1, roots) for root_entropy, roots in ((0.0, 2), (0.5, 4), (1.0, 6))),
        (NO_HISTORY, 1.0, 1, 5),
        # 0.1 ln V more on each of as many tokens as the window has: 8 sigma(2 * 0.2) = 4.8, and 8 sigma(2 * 0.8) = 6.7.
        (HISTORY, 0.6, 2, 5),
        (HISTORY, 0.6, 8, 7),
    ],
)
def test_pre_monitoring_chooses_the_number_of_roots(sample_tree, reference, root_entropy, num_tokens, num_roots):
    sampled = sample_tree(
        lambda request, times: ScriptedReply([10] * (num_tokens - 1) + [ANSWER], entropies=root_entropy * LN_V),
        num_rollouts=8,
        num_initial_rollouts=5,
        entropy_window=20,
        entropy_normalization="sum_log_vocab",
        pre_monitoring_sensitivity=2.0,
        rollout_reference=reference,
    )
    trajectories = sampled.tree.trajectories
    assert [t.agent_id for t in trajectories] == [str(i) for i in range(8)]
    assert [t.topped_up for t in trajectories] == [False] * num_roots + [True] * (8 - num_roots)
    # The others begin once the first root has its window, not when it has ended.
    assert [r.request_id for r in sampled.engine.submitted[:2]] == ["training/0/0/0", "training/0/1/0"]


def test_pre_monitoring_with_a_first_root_that_fails_tops_up(sample_tree):
    replies = [ScriptedReply([10, 10], fail_after=0), answer(11), answer(12)]
    sampled = sample_tree(
        {PROMPT: replies},
        num_rollouts=3,
        pre_monitoring_sensitivity=2.0,
        rollout_reference=HISTORY,
    )
    assert [str(t.stop_reason) for t in sampled.tree.trajectories] == ["engine_failure", "answer", "answer"]


def test_forks_that_follow_one_another_are_penalised(sample_tree):
    """P = (0.5 + 0.2 dH) (1 - 0.3 l) > 0.3 at dH = 0.4 / ln 256 = 0.072: 0.514, 0.360, then 0.206."""
    path = [*PROMPT]
    script = {}
    for i in range(4):
        script[tuple(path)] = [tool(10 + i, 1.0 if i == 0 else 1.4), *(answer(30 + i) for _ in range(2))]
        path += [10 + i, TOOL, 50, i]
    script[tuple(path)] = [answer(29, 1.4), answer(33)]
    sampled = sample_tree(
        script, num_rollouts=5, branch_threshold=0.3, consecutive_fork_penalty=0.3, max_response_tokens=200
    )
    rise = 0.4 / LN_V
    plain = 0.5 + 0.2 * rise
    assert [d.probability for d in sampled.decisions.values()] == pytest.approx(
        # After the node that is not forked, the count begins anew.
        [plain, 0.7 * plain, 0.4 * plain, plain]
    )
    assert sampled.children == {("0", 1): 1, ("0", 2): 1, ("0", 4): 1}


def test_a_child_begins_below_a_fork(sample_tree):
    """Its first own node has one fork right above it, the one that made it."""
    child_node = (*NODE, 21, TOOL, 50, 1)
    script = {
        PROMPT: [tool(10), answer(11)],
        NODE: [answer(20, 3.0), tool(21)],
        child_node: answer(22, 3.0),
    }
    sampled = sample_tree(script, num_rollouts=3, consecutive_fork_penalty=0.9)
    plain = 0.5 + 0.2 * 2 / LN_V
    assert sampled.decisions[("0.0", 2)].probability == pytest.approx(0.1 * plain)
    assert sampled.children == {("0", 1): 1}


MONITORING = {"pre_monitoring_sensitivity": 2.0, "rollout_reference": RolloutReference(after_tool=0.1)}


@pytest.mark.parametrize(("opening", "entropies", "changes"), [
    pytest.param([answer(11), tool(10)], np.nan, {}, id="after the tool of a top-up, which nobody decides"),
    pytest.param([tool(10), answer(11)], [1.0, 1.0, np.nan], {}, id="behind the tokens that dH compares"),
    pytest.param(answer(11, np.nan), 1.0, MONITORING, id="of the root that is monitored"),
])  # fmt: skip
def test_entropies_that_are_not_finite_fail_the_question_and_enter_no_history(opening, entropies, changes):
    script = by_prefix({PROMPT: opening, NODE: ScriptedReply([20, 20, ANSWER], entropies)})
    failed = ended(script, 256, [0], [ScriptedEnv()], settings(entropy_window=20, **changes))[0]
    assert failed.failure.message == "ValueError: the engine's entropies must be finite, got nan"
