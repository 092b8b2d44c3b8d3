"""Shows a question's tree to callbacks and connectors of users as RLlib's `MultiAgentEpisode`.

Env step t of the episode holds turn t of every trajectory that has one (turns are counted along the path), so a fork
enters the episode at the step that produced the tool response below which it starts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.core.figures import longest_path
from rllib_arpo.core.tree import QuestionTree, Trajectory, context_after
from rllib_arpo.envs.errors import ContractError, finite

#: Keys of the info dict of an agent's first observation.
INFO_PARENT = "parent"
INFO_NUM_INHERITED_TURNS = "inherited_turns"

#: Keys of `extra_model_outputs`, besides RLlib's own `Columns.ACTION_LOGP`.
ENTROPIES = "entropies"
WEIGHT_VERSIONS = "weight_versions"


class TreeEpisode(MultiAgentEpisode):
    """A question's tree, which shows one agent per trajectory on demand.

    ARPO itself reads `tree`. The agents' episodes are made when they are first read, and never travel: a pickled
    episode is its tree. `take_edits` copies a user's changes from them into the tree.
    """

    def __init__(self, tree: QuestionTree, custom_data: dict[str, Any] | None = None):
        """`custom_data` is `MultiAgentEpisode.custom_data`, in which callbacks leave values for later callbacks."""
        self.id_, self._tree, self._custom_data, self._is_view_made = tree.question_id, tree, custom_data or {}, False

    def __reduce__(self) -> tuple[Any, ...]:
        self.take_edits("A callback or connector")
        return TreeEpisode, (self._tree, self._custom_data)

    def __getattr__(self, name: str) -> Any:
        """Makes the view when Python misses one of its attributes, which are RLlib's slots."""
        if self._is_view_made or name not in MultiAgentEpisode.__slots__:
            raise AttributeError(f"{type(self).__name__} does not have the attribute {name!r}.")
        self._make_view()
        return getattr(self, name)

    def __len__(self) -> int:
        """The number of env steps; RLlib's learner connectors log it."""
        return longest_path(self._tree)

    @property
    def tree(self) -> QuestionTree:
        return self._tree

    def take_edits(self, who: str) -> None:
        """Copies changes in the agents' episodes into the tree; `who` names the user's code that made them.

        Users may change rewards and tokens, and drop trajectories from which no other one descends.

        Raises:
            ContractError: a reward is not a finite number, no trajectory is left, or one has lost its parent or has
                another prompt or other turns than were sampled, or the tokens of a turn and their figures differ in
                number.
        """
        if not self._is_view_made:
            return
        left = [t for t in self._tree.trajectories if t.agent_id in self.agent_episodes]
        if not left:
            raise ContractError(f"{who} left question {self.id_!r} without a trajectory.")
        for trajectory in left:
            if trajectory.parent is not None and trajectory.parent not in self.agent_episodes:
                raise ContractError(
                    f"{who} dropped trajectory {trajectory.parent!r} of question {self.id_!r}, from which "
                    f"{trajectory.agent_id!r} descends."
                )
        sampled = {t.agent_id: len(t.turns) for t in left}
        for agent_id, agent in self.agent_episodes.items():
            if len(agent) != sampled.get(agent_id):
                raise ContractError(
                    f"{who} left trajectory {agent_id!r} of question {self.id_!r} with other turns than were sampled."
                )
        self._tree = replace(self._tree, trajectories=tuple(self._edited(t, who) for t in left))

    def _edited(self, trajectory: Trajectory, who: str) -> Trajectory:
        agent = self.agent_episodes[trajectory.agent_id]
        if trajectory.parent is None and not np.array_equal(agent.observations[0], self._tree.prompt):
            raise ContractError(
                f"{who} left trajectory {trajectory.agent_id!r} of question {self.id_!r} with another prompt."
            )
        what = f"{who} left a reward of question {self.id_!r}, trajectory {trajectory.agent_id}, that"
        outputs = agent.extra_model_outputs
        turns = tuple(
            replace(
                turn,
                token_ids=np.asarray(agent.actions[i], np.int32),
                log_probs=np.asarray(outputs[Columns.ACTION_LOGP][i], np.float32),
                entropies=np.asarray(outputs[ENTROPIES][i], np.float32),
                observation=np.asarray(agent.observations[i + 1], np.int32),
                weight_versions=np.asarray(outputs[WEIGHT_VERSIONS][i], np.int32),
                reward=finite(agent.rewards[i], what),
            )
            for i, turn in enumerate(trajectory.turns)
        )
        for turn in turns:
            if not len(turn.token_ids) == len(turn.log_probs) == len(turn.weight_versions):
                raise ContractError(
                    f"{who} left trajectory {trajectory.agent_id!r} of question {self.id_!r} with unequally many "
                    "tokens, log-probs and weight versions."
                )
        return replace(trajectory, turns=turns)

    def _make_view(self) -> None:
        self._is_view_made = True
        tree, custom_data = self._tree, self._custom_data
        super().__init__(id_=tree.question_id)
        self._custom_data = custom_data
        roots = [t for t in tree.trajectories if t.parent is None]
        self.add_env_reset(
            observations={t.agent_id: tree.prompt for t in roots}, infos={t.agent_id: _first_info(t) for t in roots}
        )
        for step in range(longest_path(tree)):
            self.add_env_step(**_step(tree, step))
        # After all steps: an episode whose agents are all done would refuse forks that enter later, and a last step
        # would leave out forks that enter with it.
        self.is_terminated = True
        for agent in self.agent_episodes.values():
            agent.is_terminated = True


def _step(tree: QuestionTree, step: int) -> dict[str, dict[str, Any]]:
    """The arguments of `MultiAgentEpisode.add_env_step`."""
    data: dict[str, dict[str, Any]] = {
        key: {} for key in ("observations", "actions", "rewards", "infos", "extra_model_outputs")
    }
    for trajectory in tree.trajectories:
        agent, own = trajectory.agent_id, step - trajectory.num_inherited_turns
        if 0 <= own < len(trajectory.turns):
            turn = trajectory.turns[own]
            data["observations"][agent] = turn.observation
            data["actions"][agent] = turn.token_ids
            data["rewards"][agent] = turn.reward
            data["extra_model_outputs"][agent] = {
                Columns.ACTION_LOGP: turn.log_probs,
                ENTROPIES: turn.entropies,
                WEIGHT_VERSIONS: turn.weight_versions,
            }
        elif own == -1 and trajectory.parent is not None:
            prefix = context_after(tree.prompt, tree.path(agent)[: trajectory.num_inherited_turns])
            data["observations"][agent] = prefix.astype(np.int32)
            data["infos"][agent] = _first_info(trajectory)
    return data


def _first_info(trajectory: Trajectory) -> dict[str, Any]:
    """The info of an agent's first observation: where the trajectory began."""
    return {INFO_PARENT: trajectory.parent, INFO_NUM_INHERITED_TURNS: trajectory.num_inherited_turns}
