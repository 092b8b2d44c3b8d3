"""`import rllib_arpo` is light: no vLLM, no GPU, and hardly more work than what it stands on."""

import json
import subprocess
import sys

import pytest

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


@pytest.mark.slow
def test_without_vllm_the_algorithms_are_known_to_tune_and_nothing_heavy_is_loaded():
    code = f"""{WITHOUT_VLLM}
import json
from rllib_arpo import AEPO, ARPO, DAPO, GRPO, ReinforcePlusPlus, TreeGRPO
from ray.tune.registry import get_trainable_cls
known = [get_trainable_cls(cls.__name__) is cls for cls in (ARPO, GRPO, DAPO, ReinforcePlusPlus, AEPO, TreeGRPO)]
heavy = [name for name in ("transformers", "mlflow", "vllm", "matplotlib") if name in sys.modules]
print(json.dumps([known, heavy]))
"""
    assert json.loads(run_python(code)) == [[True] * 6, []]


@pytest.mark.slow
def test_the_import_costs_at_most_a_fifth_more_than_rllib_and_torch():
    """Both in one process, and in CPU seconds: a busy machine slows both alike. The best of three runs counts."""
    code = """
import json, time
begin = time.process_time()
import ray.rllib, torch
base = time.process_time() - begin
import rllib_arpo
print(json.dumps([base, time.process_time() - begin]))
"""
    runs = [json.loads(run_python(code)) for _ in range(3)]
    assert min(ours / base for base, ours in runs) <= 1.2, runs
