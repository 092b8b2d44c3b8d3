"""Logs an evaluation's folder: one MLflow run for every model and prompting style."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Metric

from rllib_arpo.evaluation.summary import SUMMARY
from rllib_arpo.mlflow.flat import flat_metrics, flat_params
from rllib_arpo.mlflow.run_facts import FINISHED, NOTE_TAG, RUN_FILE, RunFacts, read_facts, run_tags, write_facts
from rllib_arpo.mlflow.store import Store

EXPERIMENT = "evaluation"
#: The numeric fields of an estimate; their metric names are "gsm8k/pass_at_1", "gsm8k/pass_at_1/low", ...
_PARTS = {"value": "", "low": "/low", "high": "/high", "seed_std": "/seed_std"}


def log_evaluation(folder: Path, store: Store) -> None:
    """Makes the runs of an evaluation's folder agree with its summary; a second call changes nothing.

    The settings and the description of an arm are the params of its run, its estimates the metrics.

    Raises:
        Exception: of the store, or there is no summary in the folder.
    """
    path = folder / SUMMARY
    summary = json.loads(path.read_text(encoding="utf-8"))
    if not (folder / RUN_FILE).is_file():
        write_facts(folder, RunFacts(uuid.uuid4().hex, folder.name, run_tags(), FINISHED, EXPERIMENT))
    facts, written_ms = read_facts(folder), path.stat().st_mtime_ns // 1_000_000
    for label in dict.fromkeys(arm["label"] for arm in summary["arms"]):
        arms = [arm for arm in summary["arms"] if arm["label"] == label]
        params, name = _params(summary, arms), f"{arms[0]['model']} {arms[0]['style']}"
        tags = {**facts.tags, NOTE_TAG: _note(params), "trial_name": label}
        run = store.run_of(f"{facts.id} {name}", label, tags)
        store.log_params(run, flat_params(params))
        metrics = flat_metrics(_metrics(arms))
        known = run.data.metrics
        store.log_metrics(
            run, [Metric(key, value, written_ms, 0) for key, value in metrics.items() if known.get(key) != value]
        )
        if run.info.status != FINISHED:
            store.client.set_terminated(run.info.run_id, FINISHED)


def _note(params: Mapping[str, Any]) -> str:
    tasks = ", ".join(f"{task} ({facts['questions']} questions)" for task, facts in params["tasks"].items())
    lines = [
        f"Evaluation of `{params['model']}` in the style `{params['style']}`.",
        "",
        f"- tasks: {tasks}, {params['samples']} samples each",
        f"- command: `{params['command']}`",
        *([f"- commit: `{params['commit']}`"] if params["commit"] else []),
    ]
    return "\n".join(lines)


def _params(summary: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = arms[0]
    shared = {key: first[key] for key in ("model", "model_fingerprint", "style", "samples")}
    tasks = {arm["task"]: {"questions": arm["questions"], "env_config": json.dumps(arm["env_config"])} for arm in arms}
    origin = {key: summary[key] for key in ("command", "commit", "interval")}
    return {**shared, **origin, "settings": summary["settings"], "tasks": tasks}


def _metrics(arms: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {
        f"{arm['task']}/{name}{suffix}": estimate[part]
        for arm in arms
        for name, estimate in arm["metrics"].items()
        for part, suffix in _PARTS.items()
        if estimate[part] is not None
    }
