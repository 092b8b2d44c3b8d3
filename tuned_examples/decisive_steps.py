"""Metrics of the trails' decisive steps."""

from __future__ import annotations

from rllib_arpo.envs.tasks.trails import shows_a_choice
from rllib_arpo.tracking.decisive_responses import DecisiveResponses


class DecisiveSteps(DecisiveResponses):
    """Where the entropy rises and where forks occur: at responses that show several hits, or at others."""

    def is_decisive(self, response: str) -> bool:
        return shows_a_choice(response)
