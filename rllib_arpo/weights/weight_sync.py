"""What the algorithm needs of a way to bring weights from the learner to the engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    from rllib_arpo.learner.learner_group import ARPOLearnerGroup


class WeightSyncError(RuntimeError):
    """An engine did not take the learner's weights, or does not compute with them."""


@dataclass(frozen=True, slots=True)
class LoadError:
    """Why an env runner's engine has not got the weights; `retry`: whether a restarted one might."""

    message: str
    retry: bool


class WeightSync(Protocol):
    """One way of bringing weights from a learner group to the engines of env runners."""

    backend: str | None
    """Of vLLM's weight transfer; None: it is not used."""

    def __init__(self, learner_group: ARPOLearnerGroup): ...

    def push(self, group: EnvRunnerGroup, runners: list[int] | None = None, *, force: bool = False) -> int:
        """Brings the learner's current weights to the engines and waits until each computes with them.

        Requests that are running go on with the new weights. An env runner that dies meanwhile is left out: it will
        be restarted without weights, and be brought up by another call.

        Args:
            group: the training or the evaluation env runners.
            runners: ids of the remote env runners that are meant; None: all that are healthy.
            force: also where an engine has weights of the learner's version. Two checkpoints may share one.

        Returns:
            The version of the weights: how many updates the learner has made.

        Raises:
            WeightSyncError: naming version, env runner and cause.
        """
