"""Checks the user's own classes: an RLModule and the keys that it reads, a learner, callbacks."""

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils import force_list

from rllib_arpo.options.rules import shown
from rllib_arpo.validation.keys import NEVER_CALLED, NOT_CALLED


def check_rl_module(config: AlgorithmConfig) -> None:
    """Refuses a module that is not an `LLMRLModule`, and keys of `model_config` that no module reads.

    Raises:
        ValueError: one sentence that names the key.
    """
    from rllib_arpo.policy.llm_rl_module import LLMRLModule

    spec, own = config._rl_module_spec, config._model_config
    if spec is not None and not isinstance(spec, RLModuleSpec):
        raise ValueError(f"rl_module_spec={shown(spec)}: must be an RLModuleSpec, since ARPO has one module.")
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
            f"model_config[{given[0]!r}]: LLMRLModule does not read it; name a subclass that does in rl_module_spec."
        )


def check_methods(config: AlgorithmConfig) -> None:
    """Refuses callbacks and learners that override a method which ARPO does not call.

    Raises:
        ValueError: one sentence that names the class and the method.
    """
    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner

    for callbacks in force_list(config.callbacks_class):
        if not isinstance(callbacks, type):  # A function makes them, such as a partial; it is not called here.
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
