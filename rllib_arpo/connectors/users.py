"""The learner connectors that a user adds (`config.learners(learner_connector=...)`)."""

from collections.abc import Callable, Sequence
from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.rollout.episodes import INFO_PARENT, check_rewards


def user_connectors(
    make: Callable[[Any, Any], Any] | None, input_observation_space: Any, input_action_space: Any
) -> list[ConnectorV2]:
    """Makes the user's connectors in the way RLlib makes them.

    Args:
        make: what the user gave as `learner_connector`.

    Raises:
        ValueError: the function raised, or returned anything but a `ConnectorV2` or a list of them.
    """
    if make is None:
        return []
    try:
        made = make(input_observation_space, input_action_space)
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(f"learner_connector, called with two spaces, raised {kind}: {first_line(error)}.") from error
    connectors = list(made) if isinstance(made, (list, tuple)) else [made]
    if not all(isinstance(connector, ConnectorV2) for connector in connectors):
        raise ValueError(f"learner_connector must return a ConnectorV2 or a list of them, not {made!r}.")
    return connectors


def apply_user_connectors(
    connectors: Sequence[ConnectorV2], episodes: Sequence[MultiAgentEpisode], metrics: Any = None
) -> list[MultiAgentEpisode]:
    """Runs the user's connectors on a batch's episodes, on the driver, before the update is planned.

    They may drop, reorder or change episodes, drop trajectories without forks, and shape rewards: minibatches,
    denominators and reward statistics are computed from what is left.

    Raises:
        ValueError: one raised, no episode is left, or one without a trajectory, one dropped a trajectory from which
            others descend, or one wrote into the batch, which ARPO builds from the episodes alone.
    """
    left = list(episodes)
    batch: dict[str, Any] = {}
    for connector in connectors:
        name = type(connector).__name__
        try:
            batch = connector(rl_module=None, batch=batch, episodes=left, shared_data={}, metrics=metrics)
        except Exception as error:
            kind = type(error).__name__
            raise ValueError(
                f"learner_connector: {name} raised {kind}: {error} (it runs on the driver, with rl_module=None)."
            ) from error
        if batch:
            raise ValueError(
                f"learner_connector: {name} writes {sorted(map(str, batch))} into the batch; ARPO reads episodes only."
            )
        if not left:
            raise ValueError(f"learner_connector: {name} left no episode to train on.")
        for episode in left:
            if not episode.agent_episodes:
                raise ValueError(f"learner_connector: {name} left question {episode.id_!r} without a trajectory.")
            _check_parents(episode, name)
            check_rewards(episode, f"learner_connector: {name}")
    return left


def _check_parents(episode: MultiAgentEpisode, connector: str) -> None:
    for agent_id, agent_episode in episode.agent_episodes.items():
        parent = agent_episode.infos[0][INFO_PARENT]
        if parent is not None and parent not in episode.agent_episodes:
            raise ValueError(
                f"learner_connector: {connector} dropped trajectory {parent!r} of question {episode.id_!r}, from which "
                f"{agent_id!r} descends."
            )
