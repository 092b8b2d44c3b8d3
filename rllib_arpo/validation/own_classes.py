"""Checks what is the user's own: a module with the keys that it reads, a LoRA, a learner, callbacks.

Of LoRAs only the plain one is allowed, whose merged weights W + scale B A an engine can load.
"""

from dataclasses import fields
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils import force_list

from rllib_arpo.options.rules import POSITIVE, at_least, did_you_mean, shown
from rllib_arpo.policy.checkpoint_names import causal_lm_without_weights
from rllib_arpo.validation.keys import NEVER_CALLED, NOT_CALLED
from rllib_arpo.weights import transfer_backend


def check_rl_module(config: AlgorithmConfig) -> None:
    """Refuses a module that is not an `LLMRLModule`, and keys of `model_config` that no module reads.

    Raises:
        ValueError: one sentence that names the key.
    """
    from rllib_arpo.policy.llm_rl_module import LLMRLModule

    spec, own = config._rl_module_spec, config._model_config
    if spec is not None and not isinstance(spec, RLModuleSpec):
        raise ValueError(f"rl_module_spec={shown(spec)}: must be an RLModuleSpec, of the one module.")
    module_class = spec.module_class if spec is not None and spec.module_class is not None else LLMRLModule
    if not issubclass(module_class, LLMRLModule):
        raise ValueError(f"rl_module_spec: {module_class.__name__} does not subclass LLMRLModule.")
    if not isinstance(own, dict):
        raise ValueError(f"model_config={shown(own)}: must be a dict.")
    given = sorted({**(spec._get_model_config() if spec is not None else {}), **own})
    if shared := [key for key in given if key in config._model_config_auto_includes]:
        raise ValueError(f"model_config[{shared[0]!r}]: engine and learner share this key; use language_model().")
    if given and module_class is LLMRLModule:
        raise ValueError(
            f"model_config[{given[0]!r}]: LLMRLModule does not read it; name a subclass in rl_module_spec."
        )


def check_methods(config: AlgorithmConfig) -> None:
    """Refuses callbacks and a learner that rely on a method which ARPO does not call.

    Raises:
        ValueError: one sentence that names class and method.
    """
    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner

    for callbacks in force_list(config.callbacks_class):
        if not isinstance(callbacks, type):  # A function that makes them, such as a partial: they are not made here.
            continue
        for name in NEVER_CALLED:
            if getattr(callbacks, name, None) is not getattr(RLlibCallback, name):
                raise ValueError(f"callbacks_class: {callbacks.__name__}.{name} {NOT_CALLED}.")
    learner = config.learner_class
    if learner.compute_gradients is not ARPOTorchLearner.compute_gradients:
        raise ValueError(
            f"learner_class: {learner.__name__}.compute_gradients is never called, since gradients accumulate over "
            "passes; override postprocess_gradients, or compute_loss_for_module."
        )


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
