"""`import rllib_arpo` is light: no vLLM, no GPU, nothing heavy beside RLlib and torch."""

import json
import subprocess
import sys

import pytest

CODE = """
import json, sys

class NoVLLM:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "vllm":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoVLLM())
from rllib_arpo import AEPO, ARPO, DAPO, GRPO, ReinforcePlusPlus, TreeGRPO
from ray.tune.registry import get_trainable_cls
known = [get_trainable_cls(cls.__name__) is cls for cls in (ARPO, GRPO, DAPO, ReinforcePlusPlus, AEPO, TreeGRPO)]
heavy = [name for name in ("transformers", "mlflow", "vllm", "matplotlib") if name in sys.modules]
print(json.dumps([known, heavy]))
"""


@pytest.mark.slow
def test_without_vllm_the_algorithms_are_known_to_tune_and_nothing_heavy_is_loaded():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[True] * 6, []]
