"""The summary of an evaluation as JSON: the settings, the machine and every metric."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllib_arpo.core.intervals import LEVEL, METHOD
from rllib_arpo.evaluation.metrics import ArmMetrics, differences
from rllib_arpo.evaluation.plan import TOOLS, Arm, EvaluationSettings
from rllib_arpo.evaluation.report import TaskReport
from rllib_arpo.files import write_json
from rllib_arpo.redaction import without_secrets
from rllib_arpo.tracking.machine import origin

SUMMARY = "summary.json"


def task_reports(
    arms: Sequence[Arm], metrics: Mapping[str, ArmMetrics], settings: EvaluationSettings
) -> list[TaskReport]:
    """The metrics by task; arms are compared with the first model's arm with tools.

    Args:
        metrics: by the name of the arm.
    """
    reports = []
    for task in dict.fromkeys(arm.task for arm in arms):
        own = [arm for arm in arms if arm.task == task]
        reference = next(arm for arm in own if arm.style == TOOLS)
        reports.append(
            TaskReport(
                task=task,
                num_questions=len(reference.numbers),
                num_samples=settings.samples,
                columns={arm.label: metrics[arm.name].estimates() for arm in own},
                differences={
                    arm.label: differences(metrics[reference.name], metrics[arm.name])
                    for arm in own
                    if arm is not reference
                },
                reference=reference.label,
            )
        )
    return reports


def write_summary(
    path: Path,
    arms: Sequence[Arm],
    metrics: Mapping[str, ArmMetrics],
    reports: Sequence[TaskReport],
    settings: EvaluationSettings,
    arguments: Sequence[str],
    seconds: float,
    methods: Mapping[str, Any],
) -> None:
    """Writes the summary, in one step.

    Args:
        arguments: of the command line.
        seconds: the duration of this command, without the questions that an earlier one answered.
        methods: the table of methods, as JSON.
    """
    summary = {
        **origin("evaluate", arguments, seconds),
        "settings": dataclasses.asdict(settings),
        "interval": {"method": METHOD, "level": LEVEL},
        "arms": [_arm(arm, metrics[arm.name], report) for report in reports for arm in arms if arm.task == report.task],
        "differences": [
            {"task": report.task, "arm": label, "minus": report.reference, "metrics": _plain(estimates)}
            for report in reports
            for label, estimates in report.differences.items()
        ],
        "methods": methods,
    }
    write_json(path, summary)


def _arm(arm: Arm, metrics: ArmMetrics, report: TaskReport) -> dict[str, Any]:
    return {
        "label": arm.label,
        "model": arm.model.name,
        "model_fingerprint": arm.model.fingerprint,
        "style": arm.style,
        "task": arm.task,
        "questions": len(metrics.question_ids),
        "samples": report.num_samples,
        "commits": list(metrics.commits),
        "env_config": without_secrets(
            {key: value for key, value in arm.env_config.items() if key != "model_name_or_path"}
        ),
        "metrics": _plain(report.columns[arm.label]),
    }


def _plain(estimates: Mapping[str, Any]) -> dict[str, Any]:
    """Estimates as JSON: {"value", "low", "high", ...}."""
    return {name: dataclasses.asdict(estimate) for name, estimate in estimates.items()}
