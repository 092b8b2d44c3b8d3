"""Shows where a model is unsure: entropy by token, its rise dH after tool responses, and what each rule would fork.

    rllib-arpo entropy --model FOLDER --tasks gsm8k --data gsm8k=test.jsonl --limit 50 --output DIR

The command samples without forks, with training's sampler and tools, and keeps the entropy of every generated token. It
writes a figure for each task (`entropy-TASK.png`), the record of the questions (docs/watch.md), like `rllib-arpo
evaluate --entropies`, and `entropy.json`: curves, rises and rules with their intervals, command and machine. A second
call draws the figure again and asks nothing.
"""

import argparse
import dataclasses
import time
from collections.abc import Sequence

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.core.entropy import ENTROPY_NORMALIZATIONS
from rllib_arpo.errors import CommandError, command_errors
from rllib_arpo.evaluation.arguments import MODEL_HELP, add_sampling_arguments, positive
from rllib_arpo.evaluation.entropy import EntropySettings, as_json, print_entropy, task_entropy
from rllib_arpo.evaluation.runner import VOCAB_SIZE, answered
from rllib_arpo.files import write_json
from rllib_arpo.options.rules import FINITE, POSITIVE, PROBABILITY, at_least
from rllib_arpo.redaction import without_secrets
from rllib_arpo.tracking.machine import origin

SUMMARY = "entropy.json"
#: Option and key of `BranchingParams` -> the rule for its value. The defaults are ARPO's.
BRANCHING_OPTIONS = {
    "branch_width": at_least(1),
    "branch_base_probability": PROBABILITY,
    "branch_entropy_weight": POSITIVE,
    "branch_threshold": FINITE,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults, add = ARPOConfig(), parser.add_argument
    add("--model", required=True, help=MODEL_HELP)
    add("--output", default="entropy", help="folder for figures, record and summary")
    add("--window", type=positive, default=defaults.entropy_window, help="k: dH compares the first k tokens of turns")
    add("--positions", type=positive, default=64, help="the curves show this many tokens of a turn")
    add("--entropy-normalization", choices=ENTROPY_NORMALIZATIONS, default=defaults.entropy_normalization,
        help="units of dH in figures and tables")  # fmt: skip
    for name in BRANCHING_OPTIONS:
        default = getattr(defaults, name)
        add(f"--{name.replace('_', '-')}", type=type(default), default=default, help="as in ARPOConfig")
    add_sampling_arguments(parser)
    parser.set_defaults(samples=4, entropies=True)


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    # It imports matplotlib.
    from rllib_arpo.evaluation.entropy_figure import write_figure

    begin = time.perf_counter()
    with command_errors():
        entropy_settings = _entropy_settings(args)
    found, figures = [], []
    with answered(args, [args.model]) as (settings, folder, stored):
        for arm, results in stored:
            questions = list(results.questions())
            if not any(True for question in questions for _ in question.turns()):
                raise CommandError(f"The task {arm.task!r} has no turn to measure: all its trajectories failed.")
            vocab_size = questions[0].settings[VOCAB_SIZE]
            found.append(task_entropy(arm.task, questions, vocab_size, entropy_settings))
            # A task may be called "module:Class".
            figures.append(f"entropy-{arm.task.replace(':', '.')}.png")
            title = (
                f"{arm.model.label}, {arm.task}: {len(questions)} questions, {settings.samples} samples each, "
                f"temperature {settings.temperature:g}"
            )
            write_figure(folder / figures[-1], found[-1], entropy_settings, title)
        model = stored[0][0].model
        own = ("window", "positions", "entropy_normalization", *BRANCHING_OPTIONS)
        summary = {
            **origin("entropy", argv, time.perf_counter() - begin),
            "model": model.name,
            "model_fingerprint": model.fingerprint,
            "vocab_size": vocab_size,
            "settings": dataclasses.asdict(settings) | {name: getattr(args, name) for name in own},
            "env_configs": {arm.task: without_secrets(arm.own_config) for arm, _ in stored},
            "tasks": [as_json(task) for task in found],
        }
        write_json(folder / SUMMARY, summary)
    print_entropy(found, entropy_settings)
    print(f"The record, the summary and {', '.join(figures)} are in {folder}.")
    return 0


def _entropy_settings(args: argparse.Namespace) -> EntropySettings:
    params = BranchingParams(**{name: getattr(args, name) for name in BRANCHING_OPTIONS})
    for name, rule in BRANCHING_OPTIONS.items():
        rule.check(name, getattr(params, name))
    return EntropySettings(args.window, args.positions, args.entropy_normalization, params)
