"""`baseline="value"` against plain forward passes and a plain least-squares fit, trajectory by trajectory."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_arpo.core.tree import QuestionTree
from tests.helpers.trees import make_trajectory, make_tree, make_turn
from tests.helpers.weights import move_adapter, peft_model
from tests.learner import plain
from tests.learner.builders import (
    assert_close,
    build_learner,
    make_batch,
    make_config,
    metrics,
    parameters,
    record_gradients,
)

pytestmark = pytest.mark.usefixtures("float64_norms")

LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
NESTED = {"max_roots": 1, "max_forks": 9, "max_turns": 3}


def make_trees(first: int, **shape) -> list[QuestionTree]:
    """Four questions with masked leaves."""
    seeds = range(first, first + 4)
    return [plain.random_question(seed, f"q{seed}", masked_probability=0.1, **shape) for seed in seeds]


def plain_model(config, learner):
    """The model that the learner has at this moment, as transformers and PEFT compute it."""
    model, state = plain.load(config.model_name_or_path), learner.module[DEFAULT_MODULE_ID].get_state()
    if config.lora is not None:
        return peft_model(model, config.lora, state)
    model.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    return model


@torch.no_grad()
def plain_states(model, trees: Sequence[QuestionTree], normalize_std: bool) -> dict[int, tuple[np.ndarray, float, int]]:
    """Turn `id` -> (features of the state before it, mean advantage of the leaves below, their number).

    Of the turns with tokens that do not follow the prompt.
    """
    found: dict[int, tuple[np.ndarray, list[float]]] = {}
    for tree in trees:
        for leaf, a in plain.advantages(plain.counted(tree), normalize_std).items():
            turns = tree.path(leaf)
            tokens = [*tree.prompt, *(t for turn in turns for t in (*turn.token_ids, *turn.observation))]
            hidden = model(torch.tensor(np.array(tokens))[None], output_hidden_states=True).hidden_states[-1][0]
            at = len(tree.prompt)
            for turn in turns:
                if len(turn.token_ids) and at > len(tree.prompt):
                    state = hidden[at - 1].double().numpy()
                    features = np.append(state / np.linalg.norm(state), 1.0)
                    found.setdefault(id(turn), (features, []))[1].append(a)
                at += len(turn.token_ids) + len(turn.observation)
    return {turn: (features, float(np.mean(a)), len(a)) for turn, (features, a) in found.items()}


def plain_fit(earlier: Sequence[dict[int, tuple[np.ndarray, float, int]]], decay: float) -> np.ndarray:
    """Ridge regression as a longer list of equations, one state after the other."""
    rows, targets = [*np.eye(65)], [0.0] * 65
    for age, states in enumerate(reversed(earlier)):
        for features, target, leaves in states.values():
            weight = (leaves * decay**age) ** 0.5
            rows.append(weight * features)
            targets.append(weight * target)
    return np.linalg.lstsq(np.array(rows), np.array(targets))[0]


@pytest.mark.parametrize(
    ("options", "shape", "lora"),
    [
        ({}, {}, None),
        ({"attribution": "hard", "max_tokens_per_pass": 30, "value_decay": 0.5}, NESTED, None),
        ({"normalize_std": False, "kl_coeff": 0.3}, {"max_turns": 4}, LORA),
        ({"questions_per_minibatch": 4, "num_epochs": 1}, {"max_forks": 0}, None),
    ],
    ids=["soft", "hard, in parts", "LoRA", "one step"],
)
def test_three_updates_equal_the_plain_computation(model, options, shape, lora):
    # Adam without memory: each update begins as its plain twin does.
    settings = {"num_epochs": 2, "adam_betas": (0.0, 0.0), "baseline": "value", **options}
    config = make_config(model, **settings).language_model(lora=lora)
    learner = build_learner(config)
    if lora is not None:
        move_adapter(learner)
    record_gradients(learner)
    seen, reference = [], None
    for first in (0, 10, 20):
        trees = make_trees(first, **shape)
        expected_model = plain_model(config, learner)
        seen.append(plain_states(expected_model, trees, config.normalize_std))
        weights = plain_fit(seen[:-1], 0.9 if config.value_decay is None else config.value_decay)
        values = {turn: float(weights @ features) for turn, (features, _, _) in seen[-1].items()}
        learner.recorded.clear()
        result = metrics(learner.update(make_batch(config, trees)))

        if config.kl_coeff:
            reference = plain.all_log_probs(plain.load(model), trees, config.temperature)
        expected = plain.update(expected_model, trees, config, reference, values)
        assert len(learner.recorded) == len(expected)
        for actual_step, expected_step in zip(learner.recorded, expected, strict=True):
            plain_names = {name.removeprefix("base_model.model."): g for name, g in expected_step.items()}
            assert_close(actual_step, plain_names, rtol=1e-8)
        assert (max(map(abs, values.values())) > 0.05) == (first > 0)
        errors = [(n * (y - values[turn]) ** 2, n * y**2, n) for turn, (_, y, n) in seen[-1].items()]
        error, squares, leaves = np.sum(errors, axis=0)
        assert result["value_loss"] == pytest.approx(error / leaves, rel=1e-9)
        assert result["value_explained_variance"] == pytest.approx(1 - error / squares, abs=1e-9)


def two_paths(name: str, *rewards: float) -> QuestionTree:
    """Trajectories that differ in what the tool answers."""
    turns = [[make_turn([10], [20 + i]), make_turn([30])] for i in range(len(rewards))]
    return make_tree([1], [make_trajectory(str(i), turns[i], reward=r) for i, r in enumerate(rewards)], name)


def test_groups_without_signal_are_judged_against_values(model):
    config = make_config(model, baseline="value", questions_per_minibatch=1)
    learner = build_learner(config)
    equal = make_batch(config, [two_paths("equal", 1.0, 1.0)])
    results = metrics(learner.update(equal))
    assert (results["grad_norm"], results["value_loss"]) == (0.0, 0.0)
    assert "value_explained_variance" not in results
    learner.update(make_batch(config, [two_paths("differ", 0.0, 1.0)]))
    assert metrics(learner.update(equal))["grad_norm"] > 0.01


def test_checkpoints_have_the_values_and_engines_do_not(model, questions, tmp_path):
    config = make_config(model, baseline="value")
    first, second = build_learner(config), build_learner(config)
    first.update(make_batch(config, questions[:3]))
    path = first.save_to_path(tmp_path / "state")
    second.restore_from_path(path)
    for learner in (first, second):
        learner.update(make_batch(config, questions[3:]))
    assert_close(parameters(second), parameters(first), rtol=0.0)
    np.testing.assert_array_equal(second.get_state()["values"], first.get_state()["values"])
    assert first.weight_snapshot().weights.keys() == first.module[DEFAULT_MODULE_ID].get_state().keys()
    assert "values" not in first.get_state(components="rl_module")

    other = build_learner(make_config(model))
    other.restore_from_path(path)
    assert "values" not in other.get_state()
    before = first.get_state()["values"]
    first.set_state(other.get_state())
    np.testing.assert_array_equal(first.get_state()["values"], before)
    with pytest.raises(ValueError, match=r"^The values are of hidden states of width 32, not 64\.$"):
        first.set_state({"values": np.zeros((33, 34))})
