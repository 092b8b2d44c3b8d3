"""Metrics of the steps of a trail at which the model has to choose."""

from __future__ import annotations

from rllib_arpo.envs.tasks.trails import shows_a_choice
from rllib_arpo.tracking.decisive_responses import DecisiveResponses


class DecisiveSteps(DecisiveResponses):
    """Where the entropy rises and where forks occur: at responses that show several hits, or at others."""

    def is_decisive(self, response: str) -> bool:
        return shows_a_choice(response)
