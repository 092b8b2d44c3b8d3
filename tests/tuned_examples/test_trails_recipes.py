"""The recipes of the trails: every algorithm is valid on both, and what an algorithm does not read is refused."""

import argparse
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from rllib_arpo.commands import entropy
from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.terminal import RunTerminal
from tuned_examples import entropy_figure

ALGORITHMS = ("ARPO", "GRPO", "DAPO", "ReinforcePlusPlus", "AEPO", "TreeGRPO")
RECIPES = ("trails_small_arpo", "trails_smollm2_135m_arpo")


def make_config(name: str, model: str, *argv: str):
    recipe = importlib.import_module(f"tuned_examples.{name}")
    return recipe.make_config(model, recipe.parser.parse_args(list(argv)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", RECIPES)
def test_every_algorithm_is_valid(name, algorithm, model_folder):
    config = make_config(name, model_folder, "--algo", algorithm)
    assert config.algo_class.__name__ == algorithm
    config.validate()


@pytest.mark.parametrize(
    ("form", "limits"), [("main", (7, 320, 384)), ("late", (11, 448, 512)), ("plain", (7, 320, 384))]
)
def test_a_form_brings_its_limits_to_training_and_evaluation(form, limits, model_folder):
    config = make_config("trails_small_arpo", model_folder, "--form", form, "--seed", "3")
    names = ("max_tool_calls", "max_response_tokens", "max_context_tokens")
    evaluation = config.copy(copy_frozen=False).update_from_dict(config.evaluation_config)
    assert config.env_config == {"seed": 3, "form": form}
    assert evaluation.env_config == {"seed": 3, "form": form, "split": "test"}
    for used in (config, evaluation):
        assert tuple(getattr(used, name) for name in names) == limits
    config.validate()


@pytest.mark.parametrize(
    ("name", "buffer", "batch", "own", "aepo"),
    [("trails_small_arpo", 64, 8, 4, 4), ("trails_smollm2_135m_arpo", 80, 6, 6, 3)],
)
def test_an_algorithms_own_settings_are_cut_to_the_recipe(name, buffer, batch, own, aepo, model_folder):
    assert make_config(name, model_folder, "--algo", "DAPO").overlong_buffer_tokens == buffer
    assert make_config(name, model_folder).overlong_buffer_tokens is None
    assert make_config(name, model_folder).questions_per_minibatch == own
    assert make_config(name, model_folder, "--algo", "AEPO").questions_per_minibatch == aepo
    given = make_config(name, model_folder, "--algo", "AEPO", "--questions-per-minibatch", "1")
    assert (given.questions_per_batch, given.questions_per_minibatch) == (batch, 1)


def test_the_sizes_of_the_tree_are_the_recipes_unless_they_are_given(model_folder):
    def sizes(*argv: str) -> tuple:
        config = make_config("trails_small_arpo", model_folder, *argv)
        return config.num_rollouts, config.num_initial_rollouts, config.branch_width, config.attribution

    assert sizes() == (16, 2, 7, "soft")
    assert sizes("--num-initial-rollouts", "4", "--attribution", "hard") == (16, 4, 7, "hard")
    assert sizes("--branch-width", "1", "--branching", "always") == (16, 2, 1, "soft")
    assert sizes("--algo", "AEPO") == (16, 2, 1, "soft")
    assert sizes("--algo", "GRPO", "--num-rollouts", "8") == (8, 8, 1, "soft")
    assert make_config("trails_smollm2_135m_arpo", model_folder).num_initial_rollouts == 2


def test_the_command_line_has_the_fork_rule_its_width_and_the_batch(model_folder):
    given = {
        "num_initial_rollouts": 2, "branch_width": "wide", "branch_threshold": 0.51, "branch_base_probability": 0.4,
        "branch_entropy_weight": 0.3, "consecutive_fork_penalty": 0.1, "entropy_window": 10,
        "entropy_estimator": "top_k", "entropy_normalization": "vocab", "entropy_baseline": "running",
        "entropy_baseline_questions": 9, "budget_allocation": "ranked",
        "questions_per_batch": 6, "questions_per_minibatch": 2, "num_epochs": 2,
    }  # fmt: skip
    argv = [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    config = make_config("trails_small_arpo", model_folder, *argv)
    assert {name: getattr(config, name) for name in given} == given
    config.validate()
    assert make_config("trails_small_arpo", model_folder, "--branch-width", "7").branch_width == 7
    few = make_config("trails_small_arpo", model_folder, "--num-rollouts", "4", "--num-initial-rollouts", "2")
    few.validate()
    assert few.branch_width == 3
    automatic = make_config("trails_small_arpo", model_folder, "--branch-threshold", "auto", "--branch-share", "0.3")
    assert (automatic.branch_threshold, automatic.branch_share) == ("auto", 0.3)
    automatic.validate()


@pytest.mark.parametrize(("argv", "message"), [
    (["--algo", "GRPO", "--entropy-baseline", "running"],
     "--entropy-baseline running: --algo GRPO with branching='never' forks nothing."),
    (["--algo", "GRPO", "--entropy-baseline-questions", "32"],
     "--entropy-baseline-questions 32: --algo GRPO with branching='never' forks nothing."),
    (["--algo", "GRPO", "--attribution", "hard"],
     "attribution='hard': with branching='never' a tree has one leaf; use 'soft', which is the same."),
    (["--branching", "never", "--random-fork-probability", "0.3"],
     "--random-fork-probability 0.3: --algo ARPO with branching='never' forks nothing."),
    (["--algo", "GRPO", "--branch-width", "wide"],
     "--branch-width wide: --algo GRPO with branching='never' forks nothing."),
    (["--branching", "random", "--random-fork-probability", "0.3", "--branch-threshold", "0.6"],
     "branch_threshold=0.6: belongs to branching='threshold' or 'permuted', not to 'random'."),
    (["--num-rollouts", "0"], "num_rollouts=0: must be an integer >= 1."),
    (["--questions-per-minibatch", "0"], "questions_per_minibatch=0: must be an integer >= 1."),
])  # fmt: skip
def test_an_option_without_effect_or_of_no_size_is_refused(argv, message, model_folder):
    with pytest.raises(ValueError) as raised:
        make_config("trails_small_arpo", model_folder, *argv).validate()
    assert str(raised.value) == message


def test_the_figure_is_drawn_with_the_settings_of_the_run(model_folder, monkeypatch):
    commands = []

    def run(command, **_options):
        commands.append(command)
        return SimpleNamespace(returncode=0, stderr=None)

    monkeypatch.setattr(entropy_figure.subprocess, "run", run)
    config = make_config("trails_smollm2_135m_arpo", model_folder)
    config.adaptive_rollout(
        branch_base_probability=0.4, branch_entropy_weight=0.3, branch_width=2, entropy_normalization="vocab",
        entropy_estimator="top_k", temperature=0.8, max_turn_tokens=None,
    )  # fmt: skip
    entropy_figure.draw_entropy(config, "trails", "figures")
    ((_python, *command),) = commands
    assert command[:3] == ["-m", "rllib_arpo", "entropy"]
    parser = argparse.ArgumentParser()
    entropy.add_arguments(parser)
    args = parser.parse_args(command[3:])
    assert entropy._entropy_settings(args).params == BranchingParams(
        branch_width=2, branch_base_probability=0.4, branch_entropy_weight=0.3, branch_threshold=0.505
    )
    names = ("window", "entropy_normalization", "entropy_estimator", "temperature", "max_turn_tokens")
    assert [getattr(args, name) for name in names] == [20, "vocab", "top_k", 0.8, None]
    names = ("model", "tasks", "output", "limit", "max_tool_calls", "max_response_tokens", "max_context_tokens")
    assert [getattr(args, name) for name in names] == [model_folder, "trails", "figures", 32, 7, 400, 512]


@pytest.mark.slow
def test_a_figure_that_cannot_be_drawn_says_why_on_the_terminal(model_folder, tmp_path, capfd):
    config = make_config("trails_smollm2_135m_arpo", model_folder)
    with pytest.raises(RuntimeError) as raised, RunTerminal(tmp_path / "run.log"):
        entropy_figure.draw_entropy(config, "trails", "/dev/null/figures")
    assert str(raised.value) == (
        "The entropy figure could not be drawn.\n"
        "error: --output /dev/null/figures: not a folder that can be written (Not a directory)."
    )
    figure = Path("/dev/null/figures/entropy-trails.png")
    assert capfd.readouterr().out == f"entropy   drawing where the model is unsure: {figure}, a minute\n"
