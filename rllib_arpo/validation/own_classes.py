"""Checks a user's own module with the keys that it reads, a user's own learner, and a user's own callbacks."""

from __future__ import annotations

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils import force_list

from rllib_arpo.options.rules import shown

#: Callbacks that ARPO never makes, since it builds an episode when its question has ended.
NEVER_CALLED = ("on_episode_created", "on_episode_start", "on_episode_step")


def check_rl_module(config: AlgorithmConfig) -> None:
    """Refuses a module that is not an `LLMRLModule`, and keys of `model_config` that no module reads.

    Raises:
        ValueError: one sentence that names the key.
    """
    from rllib_arpo.policy.llm_rl_module import LLMRLModule

    spec, own = config._rl_module_spec, config._model_config
    if spec is not None and not isinstance(spec, RLModuleSpec):
        raise ValueError(f"rl_module_spec={spec!r}: one module plays and is trained, so it must be an RLModuleSpec.")
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


def check_callbacks(config: AlgorithmConfig) -> None:
    """Refuses classes that rely on callbacks which ARPO does not make.

    Raises:
        ValueError: one sentence that names class and method.
    """
    for callbacks in force_list(config.callbacks_class):
        if not isinstance(callbacks, type):  # A function that makes them, such as a partial: they are not made here.
            continue
        for name in NEVER_CALLED:
            if getattr(callbacks, name, None) is not getattr(RLlibCallback, name):
                raise ValueError(
                    f"callbacks_class: {callbacks.__name__}.{name} is never called, since an episode is made when its "
                    "question has ended; use on_episode_end."
                )


def check_learner(config: AlgorithmConfig) -> None:
    """Refuses a learner that relies on a method which ARPO's learner does not call.

    Raises:
        ValueError: one sentence that names class and method.
    """
    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner

    learner = config.learner_class
    if learner.compute_gradients is not ARPOTorchLearner.compute_gradients:
        raise ValueError(
            f"learner_class: {learner.__name__}.compute_gradients is never called, since gradients accumulate over "
            "passes; override postprocess_gradients, or compute_loss_for_module."
        )
