"""Fixtures of tests about the model: tiny random models as folders, made once per test session, and packed passes."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from rllib_arpo.core.advantages import NodeAttribution
from rllib_arpo.core.columns import END, LOSS_MASK, PARENT, POSITION_IDS, TOKEN_IDS
from rllib_arpo.core.packing import concatenate, pack_tree
from rllib_arpo.core.tree import depth_first_layout
from rllib_arpo.policy.attention import path_gather
from rllib_arpo.policy.compilation import missing_for_compilation
from tests.helpers.models import tiny_model
from tests.helpers.trees import random_tree


def change_config(folder: Path, **changes: object) -> None:
    """Rewrites keys of a saved model's configuration."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Callable[..., str]:
    """`tiny_folder(architecture, tied=True)` -> the folder of a tiny random fp32 model."""

    @functools.cache
    def build(architecture: str, tied: bool = True) -> str:
        folder = tmp_path_factory.mktemp(architecture) / "model"
        return tiny_model(folder, architecture, tie_word_embeddings=tied)

    return build


@pytest.fixture
def random_pass() -> Callable[..., dict[str, torch.Tensor]]:
    """`random_pass(seed, num_trees=2)` -> the columns of a pass that the module reads, random trees side by side."""

    def build(seed: int, num_trees: int = 2, max_prompt_tokens: int = 12) -> dict[str, torch.Tensor]:
        rng = np.random.default_rng(seed)
        packed = []
        for _ in range(num_trees):
            tree = random_tree(rng, max_prompt_tokens=max_prompt_tokens, max_turn_tokens=9, max_observation_tokens=6)
            layout = depth_first_layout(tree)
            nothing = np.zeros(len(layout.nodes))
            packed.append(pack_tree(tree, layout, NodeAttribution(nothing, nothing, nothing)))
        whole = concatenate(packed)
        return {
            name: torch.from_numpy(getattr(whole, name)) for name in (TOKEN_IDS, POSITION_IDS, PARENT, END, LOSS_MASK)
        }

    return build


@pytest.fixture
def a_block_per_chain(monkeypatch):
    """Trees as small as these would otherwise fit in one block, and no path would be gathered."""
    monkeypatch.setattr(path_gather, "MAX_WASTED_PAIRS", -1)


@pytest.fixture
def float64_casts(monkeypatch):
    keep_float64(monkeypatch)


def keep_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cast to fp32 leaves fp64 as it is.

    transformers computes norms, decays and the delta rule in fp32, whose rounding would hide what is compared.
    """
    to, to_float32 = torch.Tensor.to, torch.Tensor.float

    def keeping_float64(tensor, *args, **kwargs):
        if tensor.dtype is torch.float64:
            args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", keeping_float64)
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x if x.dtype is torch.float64 else to_float32(x))


@pytest.fixture
def compiler() -> Iterator[None]:
    """Nothing is compiled before and after the test, which is skipped where nothing can be."""
    if missing := missing_for_compilation("cpu"):
        pytest.skip(f"torch.compile needs {missing}")
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.reset()


def num_compiled() -> int:
    """How many graphs have been compiled in this test."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]
