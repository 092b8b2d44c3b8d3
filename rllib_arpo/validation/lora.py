"""Checks `language_model(lora=...)`: only plain LoRA, whose merged weights W + scale B A an engine can load."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.options.rules import POSITIVE, at_least
from rllib_arpo.policy.checkpoint_names import causal_lm_without_weights
from rllib_arpo.validation.keys import did_you_mean
from rllib_arpo.weights import transfer_backend

#: Keywords of `peft.LoraConfig` that can be set; any other must have its default.
KEYS = {
    "r", "lora_alpha", "target_modules", "exclude_modules", "use_rslora", "init_lora_weights", "layers_to_transform",
    "layers_pattern", "rank_pattern", "alpha_pattern",
}  # fmt: skip
#: Initialisations of the adapter that do not change the base weights.
INITIALISATIONS = (True, False, "gaussian", "orthogonal")
_NO_DROPOUT = "log-probs must be those of the policy that sampled, which had no dropout"


def check_lora(config: AlgorithmConfig) -> None:
    """Checks the dict, and checks on a model without weights that the adapter fits.

    Raises:
        ValueError: one sentence that names the key.
        ImportError: PEFT is not installed.
    """
    lora = config.lora
    if lora is None:
        return
    if not isinstance(lora, dict):
        raise ValueError(f"lora={lora!r}: must be None or a dict of keywords of peft.LoraConfig.")
    if transfer_backend(config.weight_sync):
        raise ValueError(f"weight_sync={config.weight_sync!r}: sends whole weights; with lora use 'in_process_reload'.")
    _check_keywords(lora)
    _check_targets(lora, config.model_name_or_path)


def _check_keywords(lora: dict[str, Any]) -> None:
    from rllib_arpo.policy.lora import lora_config

    defaults = lora_config({})
    known = [field.name for field in fields(defaults)]
    for key, value in lora.items():
        if key not in known:
            raise ValueError(f"lora: {key!r} is not a keyword of peft.LoraConfig.{did_you_mean(key, sorted(KEYS))}")
        if key not in KEYS and value != getattr(defaults, key):
            plain = f"only plain LoRA is supported, with {', '.join(sorted(KEYS))}"
            reason = _NO_DROPOUT if key == "lora_dropout" else plain
            raise ValueError(f"lora[{key!r}]={value!r}: {reason}.")
    at_least(1).check("lora['r']", lora.get("r", 1))
    POSITIVE.check("lora['lora_alpha']", lora.get("lora_alpha", 1))
    if lora.get("init_lora_weights", True) not in INITIALISATIONS:
        raise ValueError(
            f"lora['init_lora_weights']={lora['init_lora_weights']!r}: must be one of "
            f"{', '.join(map(repr, INITIALISATIONS))}, which leave the base weights alone."
        )


def _check_targets(lora: dict[str, Any], model_name_or_path: str) -> None:
    from rllib_arpo.policy.lora import Adapter

    Adapter(causal_lm_without_weights(model_name_or_path), lora)
