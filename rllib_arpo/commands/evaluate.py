"""Evaluates models that call tools, with the sampler and the tools of training.

    rllib-arpo evaluate --model smollm2-135m --tasks gsm8k --data gsm8k=test.jsonl --samples 5 --limit 50

Prints a table with a bootstrap interval for every metric, and writes into the folder --output: `transcripts.parquet`
(every turn of every sample), `summary.json` and `results.sqlite`, which stores each question as soon as it has ended:
if the command is killed, the same command continues where it stopped, and asks again the questions that a broken tool
(a judge or a server that could not be reached, ...) or the engine ended. `--compare CHECKPOINT` adds the paired
difference to the first model, `--baselines direct,tools` the first model without tools and with tools.

`--suite math,knowledge` asks the tasks of the paper's suites. With several tasks the command ends with a table of
methods by tasks, with the average over tasks. `--model METHOD=MODEL` names a model's row; models of the same method are
its seeds, whose scores are averaged. Models that were evaluated into the same folder before have their rows as well,
and `--rows-of DIR` adds those of another folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllib_arpo.commands import INTERRUPTED
from rllib_arpo.evaluation.arguments import (
    MODEL_HELP,
    add_sampling_arguments,
    chosen_tasks,
    names_in,
    questions_in_flight,
    read_env_configs,
    read_settings,
)
from rllib_arpo.evaluation.earlier_results import METHODS, EarlierResults, earlier_results
from rllib_arpo.evaluation.errors import command_errors
from rllib_arpo.evaluation.method_report import as_json, metric_names, print_method_table
from rllib_arpo.evaluation.method_table import MethodTable, Scores, method_table
from rllib_arpo.evaluation.metrics import ArmMetrics, arm_metrics
from rllib_arpo.evaluation.models import remove_exported, resolve_models, split_methods
from rllib_arpo.evaluation.plan import STYLES, TOOLS, Arm, EvaluationSettings, check_tasks, make_arms
from rllib_arpo.evaluation.report import print_report
from rllib_arpo.evaluation.runner import ask, running_engine, showing_progress
from rllib_arpo.evaluation.store import ResultStore, SettingsError
from rllib_arpo.evaluation.suites import score_of
from rllib_arpo.evaluation.summary import SUMMARY, task_reports, write_summary
from rllib_arpo.evaluation.transcripts import write_transcripts
from rllib_arpo.tracking.machine import commit

TRANSCRIPTS = "transcripts.parquet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", action="append", required=True, metavar="[METHOD=]MODEL",
        help=f"{MODEL_HELP}; repeat it for more arms; those of one METHOD share a row of the table")  # fmt: skip
    add("--compare", action="append", default=[], help="a further model: the same as a further --model")
    add("--baselines", default="", help=f"arms of the first model beside the one with tools: {', '.join(STYLES)}")
    add("--output", default="evaluation", help="folder of the results; continues the evaluation that it holds")
    add("--rows-of", action="append", default=[], metavar="DIR",
        help="adds the results of another --output folder to the methods' table; repeatable")  # fmt: skip
    add("--entropies", action="store_true", help="keep the entropy of every generated token in the transcripts")
    add("--no-mlflow", dest="mlflow", action="store_false", help="log no MLflow run")
    add_sampling_arguments(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status.

    Raises:
        CommandError: see `evaluate`.
    """
    try:
        evaluate(args, argv)
    except KeyboardInterrupt:
        print(f"\nInterrupted: {args.output} has all finished questions; the same command continues.", file=sys.stderr)
        return INTERRUPTED
    return 0


def evaluate(args: argparse.Namespace, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the command line `args` and returns the summary.

    Raises:
        CommandError: something of the command line or of the data is wrong, or the output folder has other settings.
    """
    begin = time.perf_counter()
    with command_errors():
        settings, own = read_settings(args), read_env_configs(args)
        tasks, baselines = chosen_tasks(args), names_in(args.baselines)
        check_tasks(tasks, own, settings)
        names, methods = split_methods([*args.model, *args.compare])
        store = ResultStore(args.output)
    with store:
        with command_errors((SettingsError,)):
            store.claim(dataclasses.asdict(settings))
        models = resolve_models(names, store.folder, settings.dtype)
        arms = make_arms(models, baselines, tasks, own, settings)
        with command_errors((SettingsError,)):
            for arm in arms:
                store.claim(arm.settings(), arm.name)
        store.set_note(METHODS, (store.note(METHODS) or {}) | methods)
        earlier = earlier_results(store, args.rows_of, arms)
        with command_errors():
            if args.mlflow:
                _check_mlflow()
        for model in models:
            _answer([arm for arm in arms if arm.model == model], store, settings, args)
        summary = _report(arms, store, settings, earlier, argv, begin)
        if args.mlflow:
            _log_to_mlflow(store.folder)
        remove_exported(store.folder)
    return summary


def _answer(arms: Sequence[Arm], store: ResultStore, settings: EvaluationSettings, args: argparse.Namespace) -> None:
    """Asks the questions that the arms of one model have not answered yet."""
    missing = {arm.name: sorted(set(arm.numbers) - store.numbers(arm.name)) for arm in arms}
    open_arms = [arm for arm in arms if missing[arm.name]]
    if not open_arms:
        return
    in_flight = questions_in_flight(args, settings)
    code = commit()
    with running_engine(open_arms, settings, args.num_threads) as (engine, thread):
        for arm in open_arms:
            numbers = missing[arm.name]
            print(f"{arm.task}, {arm.label}: {len(numbers)} of {len(arm.numbers)} questions to ask.", flush=True)
            with showing_progress(arm, len(numbers), args.progress) as on_progress:
                answered = ask(arm, numbers, engine, thread, settings, in_flight=in_flight, on_progress=on_progress)
                for record in answered:
                    store.add(arm.name, record, code)


def _report(
    arms: Sequence[Arm],
    store: ResultStore,
    settings: EvaluationSettings,
    earlier: EarlierResults,
    argv: Sequence[str] | None,
    begin: float,
) -> dict[str, Any]:
    metrics = {arm.name: arm_metrics(store.records(arm.name)) for arm in arms}
    reports, table = task_reports(arms, metrics, settings), _methods(arms, metrics, store, earlier)
    num_samples = write_transcripts(store.folder / TRANSCRIPTS, store, arms)
    seconds, methods = time.perf_counter() - begin, as_json(table, earlier.notes)
    summary = write_summary(store.folder / SUMMARY, arms, metrics, reports, settings, argv, seconds, methods)
    print_report(reports)
    if len(table.metrics) > 1 or earlier.scores or store.note(METHODS):
        print_method_table(table, earlier.notes)
    print(f"{num_samples} transcripts and the summary are in {store.folder}; this command took {seconds:.0f} s.")
    return summary


def _methods(
    arms: Sequence[Arm], metrics: Mapping[str, ArmMetrics], store: ResultStore, earlier: EarlierResults
) -> MethodTable:
    methods, folder = store.note(METHODS), str(store.folder)
    # The first model with tools is the reference, as in the tables of the tasks.
    ordered = sorted(arms, key=lambda arm: arm.style != TOOLS or arm.model != arms[0].model)
    own = [
        Scores(
            model=arm.model.name,
            method=methods.get(arm.model.name),
            style=arm.style,
            task=arm.task,
            source=folder,
            values=metrics[arm.name].values[score_of(arm.task)],
        )
        for arm in ordered
    ]
    return method_table([*own, *earlier.scores], metric_names(arms))


def _check_mlflow() -> None:
    """Before the engine starts. A server may be down until the evaluation has ended.

    Raises:
        ValueError: the local store cannot be opened.
    """
    from rllib_arpo.mlflow.evaluation_log import EXPERIMENT
    from rllib_arpo.mlflow.store import is_local, open_store, store_uri

    if is_local(store_uri()):
        open_store(experiment=EXPERIMENT)


def _log_to_mlflow(folder: Path) -> None:
    from rllib_arpo.mlflow.evaluation_log import EXPERIMENT, log_evaluation
    from rllib_arpo.mlflow.store import one_line, open_store, store_uri

    try:
        log_evaluation(folder, open_store(experiment=EXPERIMENT))
    except Exception as error:  # The stores behind MLflow raise errors of a dozen libraries.
        command = f"`rllib-arpo log-run {folder} --store {store_uri()}`"
        print(f"MLflow lacks a part of the evaluation ({one_line(error)}): log it with {command}.", file=sys.stderr)
