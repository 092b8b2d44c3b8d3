"""A question's tree as RLlib's `MultiAgentEpisode`, and back.

Env step t of the episode holds turn t of every trajectory that has one (turns are counted along the path), so a fork
enters the episode at the step that produced the tool response below which it starts.
"""

from typing import Any

import numpy as np
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_arpo.core.tree import QuestionTree, Trajectory, Turn, context_after, fork_path
from rllib_arpo.envs.errors import finite
from rllib_arpo.envs.forkable_env import INFO_STEP, StepInfo

#: Keys of the info dict of an agent's first observation.
INFO_PARENT = "parent"
INFO_NUM_INHERITED_TURNS = "inherited_turns"
INFO_TOPPED_UP = "topped_up"
INFO_STOP = "stop"
#: Key of a turn: the `ForkDecision` about the tool response before it, if there is one.
INFO_DECISION = "decision"
#: Key of a turn: its `TurnTimes`.
INFO_TIMES = "times"

#: Keys of `extra_model_outputs` beside RLlib's own `Columns.ACTION_LOGP`.
ENTROPIES = "entropies"
WEIGHT_VERSIONS = "weight_versions"


def check_rewards(episode: MultiAgentEpisode, who: str) -> None:
    """Raises ContractError if code of a user, `who`, has left a reward that is not a finite number."""
    for agent_id, agent_episode in episode.agent_episodes.items():
        for reward in agent_episode.get_rewards():
            finite(reward, f"{who} left a reward of question {episode.id_!r}, trajectory {agent_id}, that")


def tree_to_episode(tree: QuestionTree) -> MultiAgentEpisode:
    """Stores `tree` as one episode with one agent per trajectory; `episode_to_tree` is its inverse."""
    episode = MultiAgentEpisode(id_=tree.question_id)
    roots = [t for t in tree.trajectories if t.parent is None]
    episode.add_env_reset(
        observations={t.agent_id: tree.prompt for t in roots},
        infos={t.agent_id: _first_info(t) for t in roots},
    )
    num_steps = max((t.num_inherited_turns + len(t.turns) for t in tree.trajectories), default=0)
    for step in range(num_steps):
        _add_step(episode, tree, step)
    # After all steps: an episode whose agents are all done would refuse forks that enter later, and a last step would
    # leave out those that enter with it.
    episode.is_terminated = True
    for agent_episode in episode.agent_episodes.values():
        agent_episode.is_terminated = True
    return episode


def _add_step(episode: MultiAgentEpisode, tree: QuestionTree, step: int) -> None:
    data: dict[str, dict[str, Any]] = {
        key: {} for key in ("observations", "actions", "rewards", "infos", "extra_model_outputs")
    }
    for trajectory in tree.trajectories:
        own = step - trajectory.num_inherited_turns
        if 0 <= own < len(trajectory.turns):
            _add_turn(data, trajectory, own)
        elif own == -1 and trajectory.parent is not None:
            data["observations"][trajectory.agent_id] = path_token_ids(tree, trajectory.agent_id, own_turns=0)
            data["infos"][trajectory.agent_id] = _first_info(trajectory)
    episode.add_env_step(**data)


def _add_turn(data: dict[str, dict[str, Any]], trajectory: Trajectory, own: int) -> None:
    turn, agent = trajectory.turns[own], trajectory.agent_id
    data["observations"][agent] = turn.observation
    data["actions"][agent] = turn.token_ids
    data["rewards"][agent] = turn.reward
    data["infos"][agent] = {
        INFO_STEP: StepInfo(tool_call=turn.tool_call, new_context=turn.new_context),
        INFO_DECISION: turn.decision,
        INFO_TIMES: turn.times,
    }
    data["extra_model_outputs"][agent] = {
        Columns.ACTION_LOGP: turn.log_probs,
        ENTROPIES: turn.entropies,
        WEIGHT_VERSIONS: turn.weight_versions,
    }


def _first_info(trajectory: Trajectory) -> dict[str, Any]:
    """The info of an agent's first observation, which carries the values for which RLlib has no column."""
    return {
        INFO_PARENT: trajectory.parent,
        INFO_NUM_INHERITED_TURNS: trajectory.num_inherited_turns,
        INFO_TOPPED_UP: trajectory.topped_up,
        INFO_STOP: StepInfo(
            stop_reason=trajectory.stop_reason, accuracy=trajectory.accuracy, format_valid=trajectory.format_valid
        ),
    }


def path_token_ids(tree: QuestionTree, agent_id: str, own_turns: int | None = None) -> np.ndarray:
    """The context at the end of a path (`context_after`), [n] int32, or after the first `own_turns` of its own."""
    path = tree.path(agent_id)
    if own_turns is not None:
        path = path[: tree.by_id()[agent_id].num_inherited_turns + own_turns]
    return context_after(tree.prompt, path).astype(np.int32)


def episode_to_tree(episode: MultiAgentEpisode) -> QuestionTree:
    """Restores the tree of an episode that `tree_to_episode` made, its trajectories in logical order.

    RLlib keeps agents in an order that differs between processes (it iterates over sets of their ids).
    """
    agents = sorted(episode.agent_episodes.items(), key=lambda agent: fork_path(str(agent[0])))
    first = agents[0][1]
    return QuestionTree(
        question_id=episode.id_,
        prompt=np.asarray(first.observations[0], np.int32),
        trajectories=tuple(_trajectory(str(agent), e) for agent, e in agents),
    )


def _trajectory(agent_id: str, episode: SingleAgentEpisode) -> Trajectory:
    first_info = episode.infos[0]
    stop: StepInfo = first_info[INFO_STOP]
    assert stop.stop_reason is not None
    return Trajectory(
        agent_id=agent_id,
        turns=tuple(_turn(episode, i) for i in range(len(episode))),
        stop_reason=stop.stop_reason,
        accuracy=stop.accuracy,
        format_valid=stop.format_valid,
        parent=first_info[INFO_PARENT],
        num_inherited_turns=first_info[INFO_NUM_INHERITED_TURNS],
        topped_up=first_info[INFO_TOPPED_UP],
    )


def _turn(episode: SingleAgentEpisode, i: int) -> Turn:
    outputs, info = episode.extra_model_outputs, episode.infos[i + 1]
    return Turn(
        token_ids=np.asarray(episode.actions[i], np.int32),
        log_probs=np.asarray(outputs[Columns.ACTION_LOGP][i], np.float32),
        entropies=np.asarray(outputs[ENTROPIES][i], np.float32),
        observation=np.asarray(episode.observations[i + 1], np.int32),
        weight_versions=np.asarray(outputs[WEIGHT_VERSIONS][i], np.int32),
        tool_call=info[INFO_STEP].tool_call,
        new_context=info[INFO_STEP].new_context,
        decision=info[INFO_DECISION],
        times=info[INFO_TIMES],
        reward=float(episode.rewards[i]),
    )
