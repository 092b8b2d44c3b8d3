"""The vLLM engine (vLLM 0.26 to 0.32; the CPU build and the CUDA build alike): the only folder that imports vLLM.

`engine` runs requests, `arguments` is what vLLM gets of them and of the configuration, `entropy_processor` measures
(`entropy_processor_v2`: inside vLLM's newer model runner).
"""

from __future__ import annotations

import os

# vLLM reads these when it is imported or when an engine is built.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
# At WARNING each engine prints some twenty lines that a user cannot act on.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from vllm.platforms import current_platform

if current_platform.is_cpu():
    # vLLM compiles small functions one by one: that takes a C++ compiler and up to 17 s at start-up.
    current_platform.simple_compile_backend = "eager"
    # Else several workers need a NUMA node each. Which cores they run on is Ray's matter, or the user's.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
