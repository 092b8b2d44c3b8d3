"""Lists the weights that a Hugging Face checkpoint must hold; engines check new weights before they load them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_arpo.envs.support.texts import first_line

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PreTrainedModel


def causal_lm_config(model_name_or_path: str) -> Any:
    """The `transformers` configuration of a causal LM; of a vision-language model that of its text part (Qwen3.5).

    Raises:
        ValueError: there is no such model, or it is not a causal LM.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    looks_like_path = model_name_or_path.startswith((".", "~", os.sep)) or model_name_or_path.count("/") > 1
    if looks_like_path and not Path(model_name_or_path).is_dir():
        raise ValueError(f"model_name_or_path={model_name_or_path!r}: no such folder.")
    try:
        config = AutoConfig.from_pretrained(model_name_or_path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model_name_or_path={model_name_or_path!r} is neither a folder with a Hugging Face model nor the id of "
            f"one that can be loaded: {first_line(error)}"
        ) from error
    architectures = config.architectures or []
    text_architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if hasattr(config, "text_config") and text_architecture is not None:
        config, architectures = config.get_text_config(), [text_architecture]
        config.architectures, config.name_or_path = architectures, model_name_or_path
    if not set(architectures) & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        raise ValueError(
            f"model_name_or_path={model_name_or_path!r} is not a causal language model: "
            f"its architecture is {', '.join(architectures) or 'not stated'}."
        )
    return config


def expected_shapes(model_name_or_path: str) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight of the model, tied ones (`lm_head.weight`) included. No weight is read."""
    weights = causal_lm_without_weights(model_name_or_path).state_dict()
    return {name: tuple(weight.shape) for name, weight in weights.items()}


def causal_lm_without_weights(model_name_or_path: str) -> PreTrainedModel:
    """The model on torch's "meta" device: its layers and shapes; no weight is read or made."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(causal_lm_config(model_name_or_path))


def check_shapes(
    given: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], owner: str = "the engine's model"
) -> None:
    """Raises ValueError, naming a weight, unless `given` has exactly the names and the shapes of `expected`."""
    wrong = [name for name in sorted(given.keys() | expected.keys()) if given.get(name) != expected.get(name)]
    if wrong:
        name, more = wrong[0], f"; {len(wrong) - 1} more differ" if wrong[1:] else ""
        found, wanted = given.get(name, "missing"), expected.get(name, "no such weight")
        raise ValueError(f"These are not the weights of {owner}. {name}: {found}, expected: {wanted}{more}.")


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """An array that shares the memory of a CPU tensor; bfloat16, which NumPy lacks, becomes its bits as uint16."""
    import torch

    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def as_tensors(arrays: Mapping[str, np.ndarray]) -> list[tuple[str, torch.Tensor]]:
    """Read-only tensors that share the memory of arrays from `as_array`: Ray's arrays are not writable."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensors = [(name, torch.from_numpy(array)) for name, array in arrays.items()]
    return [(name, t.view(torch.bfloat16) if t.dtype == torch.uint16 else t) for name, t in tensors]
