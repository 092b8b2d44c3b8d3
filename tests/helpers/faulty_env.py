"""An environment that kills the process it runs in. Every question has a prompt of its own."""

from __future__ import annotations

import os
from pathlib import Path

from rllib_arpo.envs.forkable_env import OPTION_QUESTION
from tests.helpers.scripted_env import ScriptedEnv


class FaultyEnv(ScriptedEnv):
    """env_config: `die_at`: the question at which the process dies; `marker`: a file that says it has died once.

    Without a marker it dies every time.
    """

    def __init__(self, env_config=None):
        super().__init__(env_config)
        self.die_at = (env_config or {}).get("die_at")
        self.marker = (env_config or {}).get("marker")

    def reset(self, *, seed=None, options=None):
        if (options or {}).get(OPTION_QUESTION) == self.die_at and not (self.marker and Path(self.marker).exists()):
            if self.marker:
                Path(self.marker).touch()
            os._exit(1)
        return super().reset(seed=seed, options=options)

    def prompt(self):
        return [*super().prompt(), self.question]
