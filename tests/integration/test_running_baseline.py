"""Entropies of earlier questions decide about later ones: the same for all env runners, and part of the checkpoint."""

import numpy as np
import pytest

from rllib_arpo import ARPO


@pytest.fixture
def running(scripted):
    """Both ways in which earlier questions count; whatever the timing, the same trees."""
    return scripted.adaptive_rollout(
        num_rollouts=8,
        num_initial_rollouts=4,
        entropy_baseline="running",
        pre_monitoring_sensitivity=4.0,
        deterministic=True,
    ).language_model(
        engine_kwargs={"vocab_size": 256, "seed": 5, "replies": [[7, 1], [8, 9, 1], [9, 1], [7, 2], [8, 8, 2]]}
    )


def trees(algorithm, num_iterations: int) -> list[list]:
    """Per iteration and question: (agent id, stop reason, [(decision, tokens of its window)]) of every trajectory."""
    iterations: list[list] = []
    update = algorithm._update
    algorithm._update = lambda batch: (iterations.append(batch), update(batch))
    for _ in range(num_iterations):
        algorithm.train()
    algorithm._update = update
    return [
        [
            [
                (t.agent_id, str(t.stop_reason), [(turn.decision, len(turn.entropies)) for turn in t.turns])
                for t in tree.trajectories
            ]
            for tree in (sampled.tree for sampled in batch)
        ]
        for batch in iterations
    ]


def test_an_automatic_threshold_is_of_the_batch_before(running):
    config = running.copy(copy_frozen=False).adaptive_rollout(
        entropy_baseline="initial",
        pre_monitoring_sensitivity=None,
        branch_threshold="auto",
        branch_share=0.4,
    )
    algorithm = config.build_algo()
    iterations = trees(algorithm, 3)
    algorithm.stop()
    nodes = [[(name, d) for tree in batch for name, _, own in tree for d, _ in own if d] for batch in iterations]
    rises = [0.0, *(np.quantile([d.delta for name, d in batch if "." not in name], 0.6) for batch in nodes)]
    for batch, rise in zip(nodes, rises, strict=False):
        decided = [d for _, d in batch if d.eligible]
        assert [d.children > 0 for d in decided] == [d.delta > rise for d in decided]
        assert {d.children > 0 for d in decided} == {True, False}


def test_env_runners_share_the_baseline_and_a_resumed_run_has_it(running, tmp_path):
    algorithm = running.build_algo()
    alone = trees(algorithm, 2)
    path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    alone += trees(algorithm, 1)
    algorithm.stop()
    decisions = [d for iteration in alone for tree in iteration for _, _, own in tree for d, _ in own if d is not None]
    assert any(d.children for d in decisions)
    # From the second batch on the rise is against earlier questions, not against the question's own opening: against
    # so many nats a token, however many tokens a window has.
    nodes = [(d, n) for tree in alone[1] for _, _, own in tree for d, n in own if d]
    assert len({n for _, n in nodes}) > 1
    assert len({round((d.level - d.delta) / n, 9) for d, n in nodes}) == 1

    resumed = ARPO.from_checkpoint(path)
    assert trees(resumed, 1) == alone[2:]
    resumed.stop()

    config = running.copy(copy_frozen=False)
    two = config.env_runners(num_env_runners=2).build_algo()
    assert trees(two, 3) == alone
    two.stop()
