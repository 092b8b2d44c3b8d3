"""Qwen3.5 in vLLM's CPU build: the text of a published checkpoint, which is a vision-language model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.models import tiny_vision_language_model

SCRIPT = """
import json, sys
import numpy as np
from gymnasium.spaces import Text
from rllib_arpo.engine import EngineConfig, make_engine
from rllib_arpo.policy.llm_rl_module import LLMRLModule

def main(folder):
    settings = {"model_name_or_path": folder, "dtype": "float32", "temperature": 1.0}
    module = LLMRLModule(model_config=settings)
    tokens, gaps = np.arange(1, 100), []

    def engine(name):
        return make_engine("vllm", EngineConfig(name, dtype="bfloat16", max_context_tokens=512, num_threads=1,
                                                engine_kwargs={"kv_cache_memory_bytes": 16 << 20}))

    def gap(engine):
        gaps.append(float(np.abs(engine.score(tokens) - module.score(tokens)).mean()))

    first = engine(folder)
    gap(first)
    for parameter in module.parameters():
        parameter.data.mul_(0.7)
    gap(first)
    first.update_weights(module.weight_views().items(), 1)
    gap(first)
    first.close()
    module.save_to_path(folder + "-saved")
    again = engine(folder + "-saved/huggingface")
    gap(again)
    again.close()
    print("gaps", json.dumps(gaps))

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.mark.slow
def test_engine_and_learner_agree_on_the_text_of_qwen3_5(tmp_path):
    """At first, after new weights, and in an engine that reads a checkpoint; in between the weights differ."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = [str(Path(__file__).parent / "without_torchvision"), *sys.path]
    done = subprocess.run(
        [sys.executable, script, tiny_vision_language_model(tmp_path / "published")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("gaps ")]
    at_first, old_weights, *later = json.loads(line.removeprefix("gaps "))
    # bf16 alone gives 0.02.
    assert max(at_first, *later) < 0.1 and old_weights > 0.3
