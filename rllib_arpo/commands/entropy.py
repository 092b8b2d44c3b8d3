"""Shows where a model is unsure: entropies by token position, dH after tool responses, what each rule would fork.

    rllib-arpo entropy --model FOLDER --tasks gsm8k --data gsm8k=test.jsonl --limit 50 --output DIR

Samples with the sampler and the tools of training, without forks, and keeps the entropy of every generated token. Into
DIR go a figure for each task (`entropy-TASK.png`), the record of the questions (docs/watch.md) as `rllib-arpo
evaluate --entropies` writes it, and `entropy.json` (curves, rises and rules with their intervals, and what was run
where). The same command draws the figure anew without asking.
"""

import argparse
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.core.entropy import ENTROPY_NORMALIZATIONS
from rllib_arpo.errors import CommandError, command_errors
from rllib_arpo.evaluation.arguments import (
    MODEL_HELP,
    add_sampling_arguments,
    positive,
)
from rllib_arpo.evaluation.entropy.summary import EntropySettings, TaskEntropy, as_json, print_report, task_entropy
from rllib_arpo.evaluation.plan import Arm, EvaluationSettings
from rllib_arpo.evaluation.results import StoredArm
from rllib_arpo.evaluation.runner import VOCAB_SIZE, answered
from rllib_arpo.files import write_json
from rllib_arpo.options.rules import FINITE, POSITIVE, PROBABILITY, at_least
from rllib_arpo.redaction import without_secrets
from rllib_arpo.tracking.machine import origin

SUMMARY = "entropy.json"
#: Option, a key of `BranchingParams`, -> the rule of its value; defaults are ARPO's.
BRANCHING_OPTIONS = {
    "branch_width": at_least(1),
    "branch_base_probability": PROBABILITY,
    "branch_entropy_weight": POSITIVE,
    "branch_threshold": FINITE,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults, add = ARPOConfig(), parser.add_argument
    add("--model", required=True, help=MODEL_HELP)
    add("--output", default="entropy", help="folder of the figure, the record and the summary")
    add("--window", type=positive, default=defaults.entropy_window, help="k, the tokens of which dH is made")
    add("--positions", type=positive, default=64, help="tokens of a turn that the curves show")
    add("--entropy-normalization", choices=ENTROPY_NORMALIZATIONS, default=defaults.entropy_normalization,
        help="the units of dH in figure and tables")  # fmt: skip
    for name in BRANCHING_OPTIONS:
        default = getattr(defaults, name)
        add(f"--{name.replace('_', '-')}", type=type(default), default=default, help="of the fork rules")
    add_sampling_arguments(parser)
    parser.set_defaults(samples=4, entropies=True)


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    begin = time.perf_counter()
    with command_errors():
        entropy_settings = _entropy_settings(args)
    with answered(args, [args.model]) as (settings, folder, stored):
        arms = [arm for arm, _ in stored]
        found = [_task_entropy(results_of, entropy_settings) for _, results_of in stored]
        figures = _write_figures(folder, found, arms, entropy_settings, settings)
        _write_summary(folder / SUMMARY, found, arms, settings, args, argv, time.perf_counter() - begin)
    print_report(found, entropy_settings)
    print(f"The record, the summary and {', '.join(figures)} are in {folder}.")
    return 0


def _entropy_settings(args: argparse.Namespace) -> EntropySettings:
    params = BranchingParams(**{name: getattr(args, name) for name in BRANCHING_OPTIONS})
    for name, rule in BRANCHING_OPTIONS.items():
        rule.check(name, getattr(params, name))
    return EntropySettings(args.window, args.positions, args.entropy_normalization, params)


def _task_entropy(stored: StoredArm, settings: EntropySettings) -> TaskEntropy:
    questions = list(stored.questions())
    if not any(True for question in questions for _ in question.turns()):
        raise CommandError(f"The task {stored.task!r}: no turn was sampled; all trajectories failed.")
    return task_entropy(stored.task, questions, questions[0].settings[VOCAB_SIZE], settings)


def _write_figures(
    folder: Path,
    found: Sequence[TaskEntropy],
    arms: Sequence[Arm],
    entropy_settings: EntropySettings,
    settings: EvaluationSettings,
) -> list[str]:
    """Draws a figure for each task; returns the names of the files."""
    from rllib_arpo.evaluation.entropy.figure import write_figure

    names = []
    for task, arm in zip(found, arms, strict=True):
        title = (
            f"{arm.model.label}, {task.task}: {task.num_questions} questions, {settings.samples} samples each, "
            f"temperature {settings.temperature:g}"
        )
        # A task may be called "module:Class".
        names.append(f"entropy-{task.task.replace(':', '.')}.png")
        write_figure(folder / names[-1], task, entropy_settings, title)
    return names


def _write_summary(
    path: Path,
    found: Sequence[TaskEntropy],
    arms: Sequence[Arm],
    settings: EvaluationSettings,
    args: argparse.Namespace,
    argv: Sequence[str],
    seconds: float,
) -> None:
    model = arms[0].model
    own = {name: getattr(args, name) for name in ("window", "positions", "entropy_normalization")}
    summary: dict[str, Any] = {
        **origin("entropy", argv, seconds),
        "model": model.name,
        "model_fingerprint": model.fingerprint,
        "vocab_size": found[0].vocab_size,
        "settings": dataclasses.asdict(settings) | own | {name: getattr(args, name) for name in BRANCHING_OPTIONS},
        "env_configs": {arm.task: without_secrets(arm.own_config) for arm in arms},
        "tasks": [as_json(task) for task in found],
    }
    write_json(path, summary)
