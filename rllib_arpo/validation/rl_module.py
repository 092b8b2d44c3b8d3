"""Checks a user's own module, and the keys that it reads beside those of `language_model()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.rllib.core.rl_module.rl_module import RLModuleSpec

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig


def check_rl_module(config: ARPOConfig) -> None:
    """Refuses a module that is not an `LLMRLModule`, and keys of `model_config` that no module reads.

    Raises:
        ValueError: one sentence that names the key.
    """
    from rllib_arpo.policy.llm_rl_module import LLMRLModule

    spec = config._rl_module_spec
    if spec is not None and not isinstance(spec, RLModuleSpec):
        raise ValueError(f"rl_module_spec={spec!r}: one module plays and is trained, so it must be an RLModuleSpec.")
    module_class = spec.module_class if spec is not None and spec.module_class is not None else LLMRLModule
    if not issubclass(module_class, LLMRLModule):
        raise ValueError(f"rl_module_spec: {module_class.__name__} does not subclass LLMRLModule.")
    given = {**(spec._get_model_config() if spec is not None else {}), **_own_model_config(config)}
    shared = config._model_config_auto_includes
    if own := sorted(given.keys() & shared.keys()):
        raise ValueError(f"model_config[{own[0]!r}]: engine and learner share this key; use language_model().")
    if given and module_class is LLMRLModule:
        key = sorted(given)[0]
        raise ValueError(f"model_config[{key!r}]: LLMRLModule does not read it; name a subclass in rl_module_spec.")


def _own_model_config(config: ARPOConfig) -> dict:
    own = config._model_config
    if not isinstance(own, dict):
        raise ValueError(f"model_config={own!r}: must be a dict.")
    return own
