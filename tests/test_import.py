"""`import rllib_arpo` is light: no vLLM, no GPU, and hardly more work than what it stands on."""

import json
import subprocess
import sys

WITHOUT_VLLM = """
import sys

class NoVLLM:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "vllm":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoVLLM())
"""


def run_python(code: str) -> str:
    """Runs `code` in a fresh interpreter and returns the last line that it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def cpu_seconds_to_import(modules: str) -> float:
    """CPU seconds, which another busy process does not change as it does wall time."""
    return float(run_python(f"import time, {modules}; print(time.process_time())"))


def test_without_vllm_the_algorithms_are_known_to_tune_and_nothing_heavy_is_loaded():
    code = f"""{WITHOUT_VLLM}
import json
from rllib_arpo import ARPO, DAPO, GRPO, ReinforcePlusPlus
from ray.tune.registry import get_trainable_cls
known = [get_trainable_cls(cls.__name__) is cls for cls in (ARPO, GRPO, DAPO, ReinforcePlusPlus)]
heavy = [name for name in ("transformers", "mlflow", "vllm") if name in sys.modules]
print(json.dumps([known, heavy]))
"""
    assert json.loads(run_python(code)) == [[True, True, True, True], []]


def test_the_import_costs_at_most_a_fifth_more_than_rllib_and_torch():
    # Alternating, and the best of each: the first run also reads the files from disk.
    runs = [(cpu_seconds_to_import("ray.rllib, torch"), cpu_seconds_to_import("rllib_arpo")) for _ in range(3)]
    base, ours = (min(column) for column in zip(*runs, strict=True))
    assert ours <= 1.2 * base, f"{ours:.2f} s against {base:.2f} s"
