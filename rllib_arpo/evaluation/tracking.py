"""Logs one MLflow run for every model and prompting style of an evaluation, with the callback that logs training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.air.constants import TRAINING_ITERATION

from rllib_arpo.evaluation.results import ResultFolder
from rllib_arpo.files import replace_file
from rllib_arpo.tracking.mlflow_callback import ARPOMLflowCallback
from rllib_arpo.tracking.mlflow_values import flat_metrics

EXPERIMENT = "evaluation"
#: The file in the folder that names the existing MLflow runs, so that a repeated command continues them.
_NOTE = "mlflow.json"
#: The numeric fields of an estimate; their metric names are "gsm8k/pass_at_1", "gsm8k/pass_at_1/low", ...
_PARTS = {"value": "", "low": "/low", "high": "/high", "seed_std": "/seed_std"}


@dataclass(frozen=True, slots=True)
class _Run:
    """The attributes of a Tune trial that the callback reads."""

    trial_id: str
    label: str
    config: dict[str, Any]

    def __str__(self) -> str:
        return self.label


class _Callback(ARPOMLflowCallback):
    """The names of metrics stay: "gsm8k/pass_at_1"."""

    def metrics_of(self, result: dict) -> dict[str, float]:
        return flat_metrics(result)

    def note_of(self, trial: _Run) -> str:
        config = trial.config
        tasks = ", ".join(f"{task} ({facts['questions']} questions)" for task, facts in config["tasks"].items())
        lines = [
            f"Evaluation of `{config['model']}` in the style `{config['style']}`.",
            "",
            f"- tasks: {tasks}, {config['samples']} samples each",
            f"- command: `{config['command']}`",
            *([f"- commit: `{config['commit']}`"] if config["commit"] else []),
        ]
        return "\n".join(lines)


class EvaluationRuns:
    """Logs arms of summaries to MLflow: to `MLFLOW_TRACKING_URI`, and in any case to a local store.

    Raises (when it is made):
        ValueError: the local store cannot be opened.
    """

    def __init__(self, results: ResultFolder):
        self._note = results.folder / _NOTE
        self._callback = _Callback(experiment_name=EXPERIMENT, report=False)
        if self._note.is_file():
            self._callback.set_state(json.loads(self._note.read_text()))
        self._callback.setup()

    def log(self, summary: Mapping[str, Any]) -> None:
        """Logs a summary: its settings and its description of the arm as params, its metrics as metrics."""
        for label in dict.fromkeys(arm["label"] for arm in summary["arms"]):
            arms = [arm for arm in summary["arms"] if arm["label"] == label]
            run = _Run(f"{arms[0]['model']} {arms[0]['style']}", label, _params(summary, arms))
            self._callback.log_trial_start(run)
            self._callback.log_trial_result(0, run, _metrics(arms) | {TRAINING_ITERATION: 0})
            self._callback.log_trial_end(run)

    def close(self) -> None:
        self._callback.close()
        with replace_file(self._note) as new:
            new.write_text(json.dumps(self._callback.get_state()))


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
