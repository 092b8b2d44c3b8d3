"""Weights as a folder that Hugging Face's `from_pretrained` reads: safetensors, configuration, tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.policy.checkpoint_names import as_tensors, causal_lm_without_weights

logger = logging.getLogger("rllib_arpo")


def write_model(
    folder: str | Path, weights: Mapping[str, np.ndarray], model_name_or_path: str, dtype: str | None = None
) -> None:
    """Writes a model with the configuration, generation configuration and tokenizer of `model_name_or_path`.

    Args:
        folder: created if it does not exist.
        weights: all of them by Hugging Face name, tied ones included; they are read only.
        model_name_or_path: the model from which training started.
        dtype: of the files ("bfloat16"); None: that of `weights`.
    """
    model = causal_lm_without_weights(model_name_or_path)
    model.load_state_dict(dict(as_tensors(weights)), assign=True)
    model.tie_weights()
    if dtype is not None:
        model = model.to(getattr(torch, dtype))
    model.save_pretrained(folder)
    write_generation_config(folder, model_name_or_path)
    write_tokenizer(folder, model_name_or_path)


def write_generation_config(folder: str | Path, model_name_or_path: str | Path) -> None:
    """Puts the generation configuration of `model_name_or_path` beside a model, if it has one.

    Copies it unchanged, since `save_pretrained` refuses contradictions that many published models have.
    """
    from transformers import GenerationConfig

    try:
        config = GenerationConfig.from_pretrained(model_name_or_path)
    except OSError:
        logger.debug("%s has no generation_config.json: it follows from config.json.", model_name_or_path)
    else:
        config.to_json_file(Path(folder) / "generation_config.json")


def write_tokenizer(folder: str | Path, model_name_or_path: str | Path) -> None:
    """Puts the tokenizer of `model_name_or_path` beside a model; an environment of token ids needs none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name_or_path)
    except (OSError, ValueError) as error:
        logger.warning("%s has no tokenizer (%s), nor has %s.", model_name_or_path, first_line(error), folder)
        return
    tokenizer.save_pretrained(folder)


def read_weights(folder: str | Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """All weights of a Hugging Face model by name, tied ones included."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).state_dict()
