"""What the pieces of the learner pipeline share: settings that are given by keyword."""

from __future__ import annotations

import inspect
from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2


class ConnectorPiece(ConnectorV2):
    """A connector whose settings are its annotated attributes; one without a value in the class must be given.

    Pieces have no `__init__` of their own: RLlib would look for its arguments with `inspect.stack()`, which reads the
    source files of all callers and takes about 0.1 s a piece.
    """

    def __init__(self, input_observation_space: Any = None, input_action_space: Any = None, **settings: Any) -> None:
        """
        Raises:
            TypeError: a setting is unknown, or one is missing.
        """
        super().__init__(input_observation_space, input_action_space)
        names = inspect.get_annotations(type(self))
        if unknown := settings.keys() - names.keys():
            raise TypeError(f"{type(self).__name__} does not have the settings {sorted(unknown)}.")
        if missing := [name for name in names if name not in settings and not hasattr(type(self), name)]:
            raise TypeError(f"{type(self).__name__} needs the settings {missing}.")
        self.__dict__.update(settings)
        self._ctor_kwargs |= settings
