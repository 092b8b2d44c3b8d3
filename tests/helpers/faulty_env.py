"""An environment that may kill the process it runs in. Every question has a prompt of its own."""

import os
from pathlib import Path

from tests.helpers.scripted_env import ScriptedEnv


class FaultyEnv(ScriptedEnv):
    """env_config: `dies_once`: a file; while it is missing, env runner 1 makes it and dies at its next question."""

    def __init__(self, env_config=None):
        super().__init__(env_config)
        self.own_prompts = True
        self.dies_once = (env_config or {}).get("dies_once")
        self.worker_index = getattr(env_config, "worker_index", 0)

    def reset(self, *, seed=None, options=None):
        if self.worker_index == 1 and self.dies_once and not Path(self.dies_once).exists():
            Path(self.dies_once).touch()
            os._exit(1)
        return super().reset(seed=seed, options=options)
