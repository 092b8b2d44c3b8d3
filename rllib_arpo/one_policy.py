"""The methods of RLlib's `Algorithm` for policies and their weights: here one module plays and is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.rl_module import RLModule

    from rllib_arpo.learner.learner_group import ARPOLearnerGroup


class OnePolicy(Algorithm):
    """The part of an algorithm that has one module, in the learners, and engines in the env runners."""

    learner_group: ARPOLearnerGroup

    @override(Algorithm)
    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule | None:
        """The learner's module; a copy of it where the learners have processes of their own.

        RLlib's own method would ask an env runner, which has an engine instead of a module.
        """
        return self.learner_group.get_module(module_id)

    @override(Algorithm)
    def set_weights(self, weights: dict[str, Any]) -> None:
        """Gives learners and engines new weights. RLlib's own wants an env runner in this process, with a module."""
        if set(weights) != {DEFAULT_MODULE_ID}:
            raise ValueError(f"set_weights: the only module is {DEFAULT_MODULE_ID!r}, not {sorted(map(str, weights))}.")
        self.learner_group.set_weights(weights)
        self._push_restored_weights()

    def _push_restored_weights(self) -> None:
        raise NotImplementedError

    @override(Algorithm)
    def get_policy(self, policy_id: str = DEFAULT_MODULE_ID) -> NoReturn:
        """Refused, and with it what RLlib computes by a policy: single actions, exports."""
        raise ValueError("ARPO has no Policy, since an engine samples: use get_module(), save_model() or evaluate().")

    @override(Algorithm)
    def add_module(self, module_id: str, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(f"add_module({module_id!r}): one model plays every trajectory and is trained.")

    @override(Algorithm)
    def remove_module(self, module_id: str, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(f"remove_module({module_id!r}): one model plays every trajectory and is trained.")
