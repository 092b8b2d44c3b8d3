"""An environment that may kill the process it runs in. Every question has a prompt of its own."""

import os
from pathlib import Path

from rllib_arpo.envs.forkable_env import OPTION_QUESTION
from tests.helpers.scripted_env import ScriptedEnv


class FaultyEnv(ScriptedEnv):
    """env_config: `deaths`: a folder; the env runners 1 .. `num_deaths` die one after the other.

    Each dies once and at a question of its own (one that kills several is given up), and writes it into a file there.
    """

    def __init__(self, env_config=None):
        super().__init__(env_config)
        self.own_prompts = True
        self.deaths = (env_config or {}).get("deaths")
        self.num_deaths = (env_config or {}).get("num_deaths", 0)
        self.worker_index = getattr(env_config, "worker_index", 0)

    def reset(self, *, seed=None, options=None):
        if self.deaths is not None:
            question = str((options or {}).get(OPTION_QUESTION))
            killed_before = [path.read_text() for path in Path(self.deaths).iterdir()]
            if len(killed_before) == self.worker_index - 1 < self.num_deaths and question not in killed_before:
                Path(self.deaths, str(self.worker_index)).write_text(question)
                os._exit(1)
        return super().reset(seed=seed, options=options)
