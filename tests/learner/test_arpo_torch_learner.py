"""`ARPOTorchLearner` against plain computations."""

import pickle

import numpy as np
import pytest
import torch
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME, WEIGHTS_SEQ_NO

from rllib_arpo.core.tree import QuestionTree, StopReason
from rllib_arpo.learner import offload
from rllib_arpo.learner.sharding import NonFiniteLossError
from tests.helpers.trees import make_trajectory, make_tree, make_turn, paid
from tests.learner import plain
from tests.learner.builders import (
    assert_close,
    build_learner,
    causal_lm,
    make_batch,
    make_config,
    metrics,
    parameters,
    record_gradients,
)

pytestmark = pytest.mark.usefixtures("float64_casts")


@pytest.fixture(scope="module")
def flat_questions() -> list[QuestionTree]:
    """Five questions as `branching="never"` samples them: no forks."""
    return [plain.random_question(seed, f"q{seed}", max_forks=0, max_roots=4) for seed in range(5)]


NESTED = {"max_roots": 1, "max_forks": 9, "max_turns": 2}
CONVERSATIONS = {"new_context_probability": 0.5, "empty_probability": 0.0, "max_forks": 6}
#: Name -> (options of the update, shape of the random trees, all with masked leaves).
CASES = {
    "soft": ({}, {}),
    "hard": ({"attribution": "hard"}, NESTED),
    "sequence mean, hard": ({"attribution": "hard", "loss_aggregation": "sequence_mean"}, {"empty_probability": 0.5}),
    "Dr. GRPO": ({"loss_aggregation": "constant", "normalize_std": False}, {"max_forks": 0}),
    "clip-higher, dual clip, no cap": ({"clip_high": 0.28, "dual_clip": 1.5, "importance_cap": None}, NESTED),
    "truncated importance sampling": (
        {"importance_cap": 1.1},
        {"max_turn_tokens": 1, "empty_probability": 0.0, "max_forks": 6},
    ),
    "KL and entropy": (
        {"kl_coeff": 0.3, "entropy_coeff": 0.2, "loss_aggregation": "constant"},
        {"trailing_observation_probability": 1.0, "max_turns": 1, "max_forks": 6},
    ),
    "AEPO": ({"keep_clipped_gradient": True, "entropy_advantage_coeff": 0.5}, {}),
    "AEPO, large coefficient, in parts": (
        {
            "keep_clipped_gradient": True,
            "entropy_advantage_coeff": 2.0,
            "attribution": "hard",
            "dual_clip": 1.5,
            "max_tokens_per_pass": 30,
        },
        NESTED,
    ),
    "Tree-GRPO": ({"baseline": "tree"}, {}),
    "same state": ({"baseline": "same_state", "normalize_std": False}, NESTED),
    "several conversations": ({}, CONVERSATIONS),
    "several conversations, hard, in parts": (
        {"attribution": "hard", "loss_aggregation": "sequence_mean", "max_tokens_per_pass": 60},
        CONVERSATIONS,
    ),
    "same state, hard": ({"baseline": "same_state", "attribution": "hard"}, {}),
}


@pytest.mark.usefixtures("a_block_per_chain")
@pytest.mark.parametrize(("options", "shape"), CASES.values(), ids=CASES)
def test_several_steps_equal_the_plain_computation(model, options, shape):
    trees = [plain.random_question(seed, f"q{seed}", masked_probability=0.1, **shape) for seed in range(5)]
    config = make_config(model, num_epochs=2, **options).adaptive_rollout(temperature=0.8)
    learner = build_learner(config)
    record_gradients(learner)
    result = metrics(learner.update(make_batch(config, trees)))

    expected_model = plain.load(model)
    expected = plain.update(expected_model, trees, config)

    assert 0 < result["clip_fraction"] < 1
    assert len(learner.recorded) == len(expected) == 6
    for actual_step, expected_step in zip(learner.recorded, expected, strict=True):
        assert_close(actual_step, expected_step, rtol=1e-9)
    assert_close(parameters(learner), dict(expected_model.named_parameters()), rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"entropy_advantage_coeff": 0.5}], ids=["plain", "times an entropy factor"])
@pytest.mark.parametrize("baseline", ["group", "batch"])
def test_kl_in_reward_equals_the_plain_computation(model, flat_questions, baseline, options):
    config = make_config(model, num_epochs=2, kl_coeff=0.3, kl_in_reward=True, baseline=baseline, **options)
    learner = build_learner(config)
    # Away from the reference, or the first KL is 0.
    with torch.no_grad():
        for p in causal_lm(learner).parameters():
            p.mul_(0.9)
    record_gradients(learner)
    learner.update(make_batch(config, flat_questions))

    actual, reference = plain.load(model), plain.load(model)
    with torch.no_grad():
        for p in actual.parameters():
            p.mul_(0.9)
    old, of_reference = (plain.all_log_probs(m, flat_questions, 1.0) for m in (actual, reference))
    batch = flat_questions if baseline == "batch" else None
    plain.loss(actual, flat_questions[:2], config, old, of_reference, batch).backward()

    assert_close(learner.recorded[0], {name: p.grad for name, p in actual.named_parameters()}, rtol=1e-9)


def test_kl_in_reward_refuses_several_conversations(model):
    trees = [
        plain.random_question(0, "q0", max_forks=0, max_roots=4, new_context_probability=1.0, empty_probability=0.0)
    ]
    config = make_config(model, kl_coeff=0.3, kl_in_reward=True)
    message = r"^kl_in_reward=True needs trajectories of one conversation, but trajectory \d of question q0 has several"
    with pytest.raises(ValueError, match=message):
        build_learner(config).update(make_batch(config, trees))


def test_a_non_finite_loss_names_the_questions_and_changes_no_weight(model):
    trees = [
        make_tree([3], [make_trajectory("0", [make_turn([1])], 1.0), make_trajectory("1", [make_turn([2])])], f"q{i}")
        for i in range(3)
    ]
    trees[1] = plain.with_nan_log_probs(trees[1])
    # One question per pass, so that the message names no other.
    config = make_config(model, questions_per_minibatch=3, max_tokens_per_pass=3)
    learner = build_learner(config)
    before = parameters(learner)

    with pytest.raises(NonFiniteLossError, match=r"not finite in the pass of the questions \['q1'\]") as raised:
        learner.update(make_batch(config, trees))
    assert pickle.loads(pickle.dumps(raised.value)).question_ids == ["q1"]
    assert_close(parameters(learner), before, rtol=0.0)


def one_turn_each(*rewards: float, stop_reason: StopReason = StopReason.ANSWER) -> QuestionTree:
    return make_tree(
        [3], [make_trajectory(str(i), [make_turn([i])], r, stop_reason=stop_reason) for i, r in enumerate(rewards)]
    )


def paid_twice(*rewards: tuple[float, float]) -> QuestionTree:
    """A question whose trajectories are paid for each of two turns."""
    turns = [(*paid([make_turn([1], [3])], first), *paid([make_turn([2])], last)) for first, last in rewards]
    return make_tree([3], [make_trajectory(str(i), own, own[-1].reward) for i, own in enumerate(turns)])


@pytest.mark.parametrize(
    ("options", "questions", "num_trained"),
    [
        ({}, [one_turn_each(0.0, stop_reason=StopReason.DEADLINE)], 0),
        ({}, [one_turn_each(1.0, 1.0), one_turn_each(1.0)], 2),
        # The means of these seven and of the next three are not 0.1.
        ({"baseline": "batch"}, [one_turn_each(*[0.1] * 3), one_turn_each(*[0.1] * 4)], 2),
        ({"returns": "to_go"}, [paid_twice(*[(0.1, 1.0)] * 3)], 1),
    ],
    ids=["nothing counts", "without signal", "a batch without signal", "without signal to go"],
)
def test_a_minibatch_without_a_gradient_takes_no_step(model, options, questions, num_trained):
    """Adam has momentum, and would decay the weights."""
    config = make_config(model, weight_decay=0.1, **options)
    learner = build_learner(config)
    learner.update(make_batch(config, [one_turn_each(0.0, 1.0)]))
    before = parameters(learner)

    result = metrics(learner.update(make_batch(config, questions)))

    assert_close(parameters(learner), before, rtol=0.0)
    assert (result["num_questions_trained"], result["groups_without_signal"]) == (num_trained, len(questions))


def test_metrics_of_one_step(model):
    # Shared turn [10, 11] with the tool's [90], then [12] or [13, 14, 15]; a second question without forks.
    forked = make_tree(
        [1, 2],
        [
            make_trajectory("0", [make_turn([10, 11], [90]), make_turn([12])], reward=1.0),
            make_trajectory("0.0", [make_turn([13, 14, 15])], num_inherited_turns=1),
        ],
        "forked",
    )
    equal = make_tree([1], [make_trajectory("0", [make_turn([5])]), make_trajectory("1", [make_turn([6])])], "equal")
    config = make_config(model, kl_coeff=0.1, importance_cap=None)
    learner = build_learner(config)
    result = metrics(learner.update(make_batch(config, [forked, equal])))

    reference = plain.load(model)
    scores = [plain.score(reference, tree, t.agent_id) for tree in (forked, equal) for t in tree.trajectories]
    # The two shared tokens of the second path stand in the first already.
    log_probs = torch.cat([scores[0].log_probs, scores[1].log_probs[2:], *(s.log_probs for s in scores[2:])])
    entropies = torch.cat([scores[0].entropies, scores[1].entropies[2:], *(s.entropies for s in scores[2:])])
    expected = {
        # prompt 2, shared turn 2 + 1, branches 1 and 3; prompt 1 and two tokens.
        "tokens_unique": 9 + 3,
        "tokens_flat": (2 + 3 + 1) + (2 + 3 + 3) + 2 + 2,
        # With a KL that of the question without a signal, too.
        "tokens_computed": 9 + 3,
        # The shared turn is below a good and a bad path.
        "mixed_sign_share": 1.0,
        "groups_without_signal": 1,
        "num_questions_trained": 2,
        "ratio_mean": 1.0,
        "clip_fraction": 0.0,
        "kl": 0.0,
        "entropy": entropies.mean().item(),
        # The engine's log-probs are all -1.
        "engine_logprob_gap": (log_probs + 1).abs().mean().item(),
        # A = +-0.7071: 3 generated tokens on the good path and 5 on the bad one, of 10 in the minibatch.
        "policy_loss": -(3 - 5) * (0.5 / (np.sqrt(0.5) + 1e-6)) / 10,
        "default_optimizer_learning_rate": 1e-2,
        WEIGHTS_SEQ_NO: 1,
        # Three turns of the forked question, two of the other.
        "num_module_steps_trained": 5,
    }
    assert {name: result[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert result["grad_norm"] == pytest.approx(result["gradients_default_optimizer_global_norm"])


@pytest.mark.parametrize(("device", "fused"), [("cpu", None), ("cuda", True)])
def test_one_kernel_steps_all_parameters_on_a_gpu(model, device, fused):
    learner = build_learner(make_config(model))
    learner._device = torch.device(device)
    learner.configure_optimizers()
    assert learner.get_optimizer().defaults["fused"] is fused


def test_offloaded_moments_visit_the_device_part_by_part(model, questions, monkeypatch):
    """Device and home are both the CPU here; tests/gpu measures the memory."""
    monkeypatch.setattr(offload, "NUMBERS_AT_A_TIME", 10_000)
    learners, fetched = [], []
    step = torch.optim.AdamW.step

    def recording(optimizer, closure=None):
        fetched.append(sum(p.numel() for p in optimizer.param_groups[0]["params"]))
        return step(optimizer, closure)

    for offloads in (False, True):
        config = make_config(model, questions_per_minibatch=3, optimizer_offload=offloads)
        learners.append(build_learner(config))
        if offloads:
            monkeypatch.setattr(torch.optim.AdamW, "step", recording)
        learners[-1].update(make_batch(config, questions))
    assert_close(parameters(learners[1]), parameters(learners[0]), rtol=0.0)
    sizes = [p.numel() for p in parameters(learners[1]).values()]
    assert len(fetched) > 2 * 2
    assert sum(fetched) == 2 * sum(sizes)
    assert max(fetched) <= max(10_000, *sizes)
    homes = learners[1].get_optimizer()._homes
    assert len(homes) == len(sizes)
    assert_states_equal(*(learner._get_optimizer_state() for learner in learners))


def assert_states_equal(*states):
    got, want = (of_optimizer["state"]["state"] for state in states for of_optimizer in state.values())
    assert got.keys() == want.keys()
    for index, moments in want.items():
        for name, value in moments.items():
            np.testing.assert_array_equal(got[index][name], value)


@pytest.mark.parametrize(("lr", "halfway"), [(1e-3, 1e-3), ([[0, 1e-3], [100, 0.0]], 5e-4)])
def test_state_round_trip_continues_with_the_same_update(model, questions, lr, halfway):
    config = make_config(model, dtype="float32", lr=lr)
    first = build_learner(config)
    timesteps = {NUM_ENV_STEPS_SAMPLED_LIFETIME: 50}
    result = metrics(first.update(make_batch(config, questions[:3]), timesteps=timesteps))
    assert result["default_optimizer_learning_rate"] == pytest.approx(halfway)
    state = first.get_state()
    first.update(make_batch(config, questions[2:]))

    second = build_learner(config)
    second.set_state(state)
    second.update(make_batch(config, questions[2:]))

    assert_close(parameters(second), parameters(first), rtol=0.0)
    assert second.get_state()[WEIGHTS_SEQ_NO] == first.get_state()[WEIGHTS_SEQ_NO] == 2


def test_learner_num_threads(model):
    before = torch.get_num_threads()
    try:
        build_learner(make_config(model, learner_num_threads=before + 1))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_single_step_needs_no_extra_forward_pass(model, questions):
    """... and a batch of several steps is scored once, before the first."""
    calls = {5: 1, 3: 1 + 2}
    for questions_per_minibatch, expected in calls.items():
        config = make_config(model, questions_per_minibatch=questions_per_minibatch)
        learner = build_learner(config)
        module, count = learner.module["default_policy"], []
        forward = module._forward_train

        def counting(batch, forward=forward, count=count, **kwargs):
            count.append(kwargs)
            return forward(batch, **kwargs)

        module._forward_train = counting
        result = metrics(learner.update(make_batch(config, questions)))
        assert len(count) == expected
        # Log-probs before the update need no entropies.
        assert [kwargs for kwargs in count if kwargs] == [{"with_entropy": False}] * (expected > 1)
        assert (result["ratio_mean"] == 1.0) == (questions_per_minibatch == 5)


@pytest.mark.parametrize(
    ("options", "skips"),
    [
        ({}, True),
        ({"skip_groups_without_signal": False}, False),
        ({"kl_coeff": 0.1}, False),
        ({"entropy_coeff": 0.1}, False),
        ({"entropy_advantage_coeff": 0.5}, True),
    ],
)
def test_groups_without_signal_are_not_computed(model, options, skips):
    """The gradient is the same; where a KL or an entropy bonus drives every token they are computed.

    Their entropies count among the minibatch's in any case.
    """
    turns = [make_turn([i], entropy=1.0 + i) for i in range(3)]
    equal = make_tree([3], [make_trajectory(str(i), [turns[i]], reward=1.0) for i in range(3)], "equal")
    differ = [
        make_tree([4], [make_trajectory(str(i), [make_turn([i, n])], reward=float(i)) for i in range(2)], f"q{n}")
        for n in range(2)
    ]
    gradients, computed = [], []
    for skip in (True, False):
        config = make_config(model, questions_per_minibatch=3, **{"skip_groups_without_signal": skip, **options})
        learner = build_learner(config)
        record_gradients(learner)
        result = metrics(learner.update(make_batch(config, [differ[0], equal, differ[1]])))
        gradients.append(learner.recorded[0])
        computed.append(result["tokens_computed"])
    assert_close(*gradients, rtol=1e-12)
    # `equal` has a prompt of one token and three trajectories of one.
    assert computed[1] - computed[0] == (4 if skips else 0)
