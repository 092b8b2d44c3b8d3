"""Shows where a model is unsure: entropy by token, its rise dH after tool responses, and what each rule would fork.

    rllib-arpo entropy --model FOLDER --tasks gsm8k --data gsm8k=test.jsonl --limit 50 --output DIR

The command samples without forks, with training's sampler and tools, and keeps the entropy of every generated token. It
writes a figure for each task (`entropy-TASK.png`), the record of the questions (docs/watch.md), and `entropy.json`:
curves, rises and rules with their intervals, command and machine. A second call draws the figure again and asks
nothing.
"""

import argparse
import dataclasses
import time
from collections.abc import Sequence

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.core.entropy import ENTROPY_NORMALIZATIONS
from rllib_arpo.core.intervals import LEVEL
from rllib_arpo.errors import CommandError, command_errors
from rllib_arpo.evaluation.arguments import MODEL_HELP, add_sampling_arguments, positive
from rllib_arpo.evaluation.report import plain_console
from rllib_arpo.evaluation.runner import answered
from rllib_arpo.files import write_json
from rllib_arpo.options.adaptive_rollout import FORK_RULE
from rllib_arpo.options.rules import FINITE, POSITIVE, PROBABILITY
from rllib_arpo.redaction import without_secrets
from rllib_arpo.tracking.machine import origin

SUMMARY = "entropy.json"
#: Option and key of `BranchingParams` -> the rule for its value. The defaults are `FORK_RULE`'s.
BRANCHING_OPTIONS = {
    "branch_base_probability": PROBABILITY,
    "branch_entropy_weight": POSITIVE,
    "branch_threshold": FINITE,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults, add = ARPOConfig(), parser.add_argument
    add("--model", required=True, help=MODEL_HELP)
    add("--output", default="entropy", help="folder for figures, record and summary")
    add("--window", dest="entropy_window", type=positive, default=defaults.entropy_window,
        help="k: dH compares the first k tokens of turns")  # fmt: skip
    add("--entropy-normalization", choices=ENTROPY_NORMALIZATIONS, default=defaults.entropy_normalization,
        help="the scale of dH")  # fmt: skip
    for name in BRANCHING_OPTIONS:
        default = getattr(FORK_RULE, name)
        add(f"--{name.replace('_', '-')}", type=type(default), default=default, help="as in ARPOConfig, a number")
    add_sampling_arguments(parser)
    parser.set_defaults(samples=4, entropies=True)


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    # It imports matplotlib.
    from rllib_arpo.evaluation.task_entropy import as_json, entropy_tables, read_turns, task_entropy, write_figure

    begin, found, figures = time.perf_counter(), [], []
    params = BranchingParams(**{name: getattr(args, name) for name in BRANCHING_OPTIONS})
    with command_errors():
        for name, rule in BRANCHING_OPTIONS.items():
            rule.check(name, getattr(params, name))
    with answered(args, [args.model]) as (settings, folder, stored):
        for arm, results in stored:
            found.append(task_entropy(arm.task, read_turns(results.folder), params))
            if not found[-1].curves:
                raise CommandError(f"The task {arm.task!r} has no turn to measure: all its trajectories failed.")
            # A task may be called "module:Class".
            figures.append(f"entropy-{arm.task.replace(':', '.')}.png")
            title = f"{arm.model.label}, {arm.task}, temperature {settings.temperature:g}"
            write_figure(folder / figures[-1], found[-1], args.entropy_window, title)
        model = stored[0][0].model
        summary = {
            **origin("entropy", argv, time.perf_counter() - begin),
            "model": model.name,
            "model_fingerprint": model.fingerprint,
            "settings": dataclasses.asdict(settings) | {name: getattr(args, name) for name in BRANCHING_OPTIONS},
            "env_configs": {arm.task: without_secrets(arm.own_config) for arm, _ in stored},
            "tasks": [as_json(task) for task in found],
        }
        write_json(folder / SUMMARY, summary)
    for task in found:
        print(f"{task.task}: {task.counts['questions']} questions, {task.counts['samples']} samples")
        print(f"{task.counts['masked_samples']} samples did not finish (deadline, broken tool, error, engine).")
        tables = entropy_tables(task)
        if not tables:
            print("No turn followed a tool response, so there is no rise to measure.")
        plain_console().print(*tables)
    print(
        f"Each question enters a mean once, with the mean of its nodes; [low, high]: {LEVEL:.0%} interval of Student's "
        f"t over questions. The rules decide here without a budget.\n"
        f"The record, the summary and {', '.join(figures)} are in {folder}."
    )
    return 0
