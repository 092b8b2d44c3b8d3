"""The trajectories that a question may still start: by their number, and by their cost."""

from collections.abc import Mapping, Sequence

from rllib_arpo.core.tree import Turn
from rllib_arpo.rollout.agent import Agent
from rllib_arpo.rollout.fork_schedule import OVER_TREE, ForkCandidate
from rllib_arpo.rollout.settings import RolloutSettings


class QuestionBudget:
    """Reads the agents of a running question; M bounds their number, and a `RolloutBudget` their cost."""

    def __init__(self, settings: RolloutSettings, agents: Mapping[str, Agent], taken_back: Sequence[Turn]):
        """
        Args:
            agents: agent id -> the agents so far; the sampler adds to it.
            taken_back: the turns of forks that have left the tree, likewise; after the first the question forks no
                more.
        """
        self._settings = settings
        self._agents = agents
        self._taken_back = taken_back

    def places(self) -> int:
        """The number of the M trajectories that do not exist yet."""
        return self._settings.num_rollouts - len(self._agents)

    def forks(self, candidate: ForkCandidate) -> int:
        """The number of children that the node may have.

        A decision that is made turn by turn counts no turn that comes later, so that it does not depend on timing.
        """
        budget, settings = self._settings.budget, self._settings
        if budget is None:
            return self.places()
        in_turns = settings.deterministic and settings.budget_allocation not in OVER_TREE
        num_turns = candidate.num_turns if in_turns else None
        committed = 0.0
        for agent in self._agents.values():
            path = agent.path(num_turns)
            committed += budget.cost(path[agent.num_inherited_turns :])
            if agent.stop is None or agent.num_path_turns > len(path):
                committed += budget.remaining(budget.cost(path))
        prefix = self._agents[candidate.agent_id].path(candidate.num_turns)
        return min(self.places(), budget.forks(committed, budget.cost(prefix)))

    def top_ups(self) -> int:
        """The number of trajectories that start when all others have ended (rule 5)."""
        budget = self._settings.budget
        if budget is None:
            return self.places()
        spent = budget.cost([*self._taken_back, *(turn for agent in self._agents.values() for turn in agent.turns)])
        return min(self.places(), budget.top_ups(spent))
