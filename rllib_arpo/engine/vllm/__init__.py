"""The vLLM engine, on CPUs and GPUs, for vLLM 0.26, 0.32 and 0.33; no other folder imports vLLM.

`engine` runs requests, `arguments` translates them and the configuration for vLLM, and `entropy_processor` measures
entropies (`entropy_processor_v2`: inside vLLM's newer model runner).
"""

import os

from rllib_arpo.engine.vllm_versions import check_vllm_version

# This process may have another vLLM than the driver, whose configuration was validated.
check_vllm_version()

# vLLM reads these when it is imported or when an engine is built.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
# At WARNING each engine prints some twenty lines that do not help a user.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from vllm.platforms import current_platform  # noqa: E402

if current_platform.is_cpu():
    # Otherwise vLLM compiles small functions one by one, which needs a C++ compiler and up to 17 s at start-up.
    current_platform.simple_compile_backend = "eager"
    # Otherwise several workers need one NUMA node each. Ray or the user chooses the cores on which they run.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
