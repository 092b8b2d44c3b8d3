"""What the machine has, and the peak of its products of matrices, of which MFU is a share."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import torch

from release.benchmarks.learner.mfu import matmul_peaks
from release.gpu_parts.report import Report
from release.gpu_parts.sizes import Sizes
from rllib_arpo.doctor.check_lines import Mark
from rllib_arpo.doctor.machine_checks import machine_checks, memory_of_this_machine

#: Packages with kernels, beside those that the doctor names.
KERNEL_PACKAGES = ("triton", "flashinfer-python", "nvidia-nccl-cu13")


def run(sizes: Sizes, report: Report, work: Path) -> None:
    for check in machine_checks(memory_of_this_machine()):
        text = f"{check.found}. {check.advice}" if check.advice else check.found
        if check.mark is Mark.MISSING:
            report.fail(check.name, text)
        else:
            report.add(check.name, text)
    for name in KERNEL_PACKAGES:
        report.add(name, _version(name))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    peaks = bf16_peaks(sizes, device)
    by_size = {n: round(peak / 1e12, 2) for n, peak in peaks.items()}
    best = max(peaks.values()) / 1e12
    report.add("best bf16 product of two square matrices", best, "TFLOP/s", detail={"by_size": by_size})


def bf16_peaks(sizes: Sizes, device: str) -> dict[int, float]:
    """FLOP/s of products of two square matrices, by their size; the best is what MFU is a share of."""
    return matmul_peaks(torch.bfloat16, sizes.products, repeats=10, device=device)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
