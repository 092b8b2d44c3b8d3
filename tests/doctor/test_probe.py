"""Facts of machines that are made up: a driver that is too old, and folders that this user may not read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from rllib_arpo.doctor.machine import Gpu, ModelFolder
from rllib_arpo.doctor.probe import _existing, _gpus, _hub_names, _model_folder


@pytest.mark.parametrize(("available", "gpus"), [(True, [Gpu("H100", 70, 80)]), (False, [])])
def test_gpus_that_torch_cannot_use_are_not_counted(monkeypatch, available, gpus):
    def mem_get_info(index: int) -> tuple[int, int]:
        if not available:
            raise RuntimeError("The NVIDIA driver on your system is too old.")
        return 70, 80

    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H100")
    assert list(_gpus()) == gpus


def test_the_models_of_a_folder(tmp_path):
    (tmp_path / "models--Qwen--Qwen3-8B").mkdir()
    (tmp_path / "datasets--a--b").mkdir()
    assert _model_folder(tmp_path, _hub_names) == ModelFolder(str(tmp_path), ("Qwen/Qwen3-8B",), True)
    new = tmp_path / "new" / "hub"
    assert _model_folder(new, _hub_names) == ModelFolder(str(new), (), True)


def refuse(*_args: object, **_kwargs: object):
    raise PermissionError


@pytest.mark.parametrize("method", ["is_dir", "iterdir"])
def test_a_folder_that_cannot_be_read_is_not_writable(tmp_path, monkeypatch, method):
    monkeypatch.setattr(Path, method, refuse)
    assert _model_folder(tmp_path, _hub_names) == ModelFolder(str(tmp_path), (), False)


def test_a_folder_below_one_that_cannot_be_entered_does_not_exist(tmp_path, monkeypatch):
    locked, stat = tmp_path / "locked", os.stat
    locked.mkdir()

    def stat_outside(path, **kwargs):
        return refuse() if isinstance(path, Path) and locked in path.parents else stat(path, **kwargs)

    monkeypatch.setattr(os, "stat", stat_outside)
    assert _existing(locked / "results") == locked
