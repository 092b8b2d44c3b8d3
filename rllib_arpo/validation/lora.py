"""Checks the option `lora`: an engine can load merged weights W + scale B A, so only plain LoRA is allowed."""

from dataclasses import fields
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.options.rules import POSITIVE, at_least, did_you_mean
from rllib_arpo.policy.checkpoint_names import causal_lm_without_weights
from rllib_arpo.weights import transfer_backend

#: Keywords of `peft.LoraConfig` that users may set; any other must keep its default.
KEYS = {
    "r", "lora_alpha", "target_modules", "exclude_modules", "use_rslora", "init_lora_weights", "layers_to_transform",
    "layers_pattern", "rank_pattern", "alpha_pattern",
}  # fmt: skip
#: Initialisations of the adapter that do not change the base weights.
INITIALISATIONS = (True, False, "gaussian", "orthogonal")
_NO_DROPOUT = "the engine samples without dropout, so the learner must not use it"


def check_lora(config: AlgorithmConfig) -> None:
    """Checks the dict, and whether the adapter fits a model of this shape without weights.

    Raises:
        ValueError: one sentence that names the key.
        ImportError: PEFT is not installed.
    """
    from rllib_arpo.policy.lora import Adapter

    lora = config.lora
    if lora is None:
        return
    if transfer_backend(config.weight_sync):
        raise ValueError(f"weight_sync={config.weight_sync!r}: sends whole weights; with lora use 'in_process_reload'.")
    _check_keywords(lora)
    Adapter(causal_lm_without_weights(config.model_name_or_path), lora)


def _check_keywords(lora: dict[str, Any]) -> None:
    from rllib_arpo.policy.lora import lora_config

    defaults = lora_config({})
    known = [field.name for field in fields(defaults)]
    for key, value in lora.items():
        if key not in known:
            raise ValueError(f"lora: {key!r} is not a keyword of peft.LoraConfig.{did_you_mean(key, sorted(KEYS))}")
        if key not in KEYS and value != getattr(defaults, key):
            plain = f"ARPO supports only plain LoRA, with {', '.join(sorted(KEYS))}"
            reason = _NO_DROPOUT if key == "lora_dropout" else plain
            raise ValueError(f"lora[{key!r}]={value!r}: {reason}.")
    at_least(1).check("lora['r']", lora.get("r", 1))
    POSITIVE.check("lora['lora_alpha']", lora.get("lora_alpha", 1))
    if lora.get("init_lora_weights", True) not in INITIALISATIONS:
        raise ValueError(
            f"lora['init_lora_weights']={lora['init_lora_weights']!r}: must be one of "
            f"{', '.join(map(repr, INITIALISATIONS))}, which do not change the base weights."
        )
