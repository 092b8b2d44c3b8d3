"""An environment of the package openenv as a world of another interpreter."""

from __future__ import annotations

from tests.helpers import openenv_app


class Adder:
    def __init__(self):
        self.environment = openenv_app.Adder()

    def reset(self, row):
        return self.environment.reset(**row).text

    def act(self, said):
        heard = self.environment.step(openenv_app.Said(number=int(said)))
        return heard.text, heard.reward, heard.done
