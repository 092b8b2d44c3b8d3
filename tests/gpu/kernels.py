"""Where the seconds of a computation go: its kernels by class, and how long the device computes at all."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from tests.gpu.workbench import DEVICE

#: Class -> parts of the names of its kernels, and of the operators that take their place on a CPU. The first class with
#: a part of a name is its class.
CLASSES = {
    "attention": ("flash", "fmha", "attention"),
    "compiled": ("triton", "cpp_fused"),
    "products": ("gemm", "nvjet", "cutlass", "xmma", "aten::mm", "aten::addmm", "aten::bmm", "mkldnn"),
    "Adam": ("adam", "multi_tensor", "addcmul", "addcdiv", "lerp"),
    "gather and scatter": ("index", "gather", "scatter", "embedding", "repeat"),
    "copies": ("memcpy", "memset", "copy", "cat"),
    "elementwise": ("elementwise", "reduce_kernel", "aten::add", "aten::mul", "aten::div", "aten::sum"),
}


@dataclass(frozen=True, slots=True)
class Profile:
    """What a device computed.

    Attributes:
        classes: class -> seconds of its kernels, "other" included.
        busy_s: seconds in which at least one kernel runs.
        longest: name -> seconds of the kernels that took the most.
    """

    classes: dict[str, float]
    busy_s: float
    longest: dict[str, float]


def kernel_class(name: str) -> str:
    name = name.lower()
    return next((kind for kind, words in CLASSES.items() if any(word in name for word in words)), "other")


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """The time that (begin, end) spans cover together; those of two streams overlap."""
    total, last = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, last))
        last = max(last, end)
    return total


def profiled(function: Callable[[], object]) -> Profile:
    """Runs the function under torch's profiler. A CPU's kernels are operators, without those that they call."""
    kind = DeviceType.CUDA if DEVICE == "cuda" else DeviceType.CPU
    with profile(activities=[ProfilerActivity.CUDA if DEVICE == "cuda" else ProfilerActivity.CPU]) as profiler:
        function()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_type == kind and not event.is_user_annotation]
    classes, names = Counter(dict.fromkeys([*CLASSES, "other"], 0.0)), Counter()
    for event in events:
        seconds = (event.time_range.elapsed_us() if DEVICE == "cuda" else event.self_cpu_time_total) / 1e6
        classes[kernel_class(event.name)] += seconds
        names[event.name[:80]] += seconds
    spans = [(event.time_range.start, event.time_range.end) for event in events]
    return Profile(dict(classes), busy(spans) / 1e6, dict(names.most_common(25)))
