"""Makes and runs the learner connectors that a user adds (`config.learners(learner_connector=...)`)."""

from collections.abc import Callable, Sequence
from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2

from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.rollout.episodes import TreeEpisode


def user_connectors(
    make: Callable[[Any, Any], Any] | None, input_observation_space: Any, input_action_space: Any
) -> list[ConnectorV2]:
    """Makes the user's connectors, like RLlib.

    Args:
        make: the user's `learner_connector`.

    Raises:
        ValueError: the function raised, or did not return a `ConnectorV2` or a list of them.
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
    connectors: Sequence[ConnectorV2], episodes: Sequence[TreeEpisode], metrics: Any = None
) -> list[TreeEpisode]:
    """Runs the user's connectors on a batch's episodes, on the driver, before the update is planned.

    They may drop, reorder, copy or change episodes, drop trajectories without forks, and shape rewards: minibatches,
    denominators and reward statistics are computed from the trees that are left (`TreeEpisode.take_edits`).

    Raises:
        ValueError: a connector raised, wrote into the batch (ARPO builds it from the episodes alone), left no episode,
            added an episode that ARPO did not make, or changed one in a way that `take_edits` refuses.
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
            if not isinstance(episode, TreeEpisode):
                kind = type(episode).__name__
                raise ValueError(f"learner_connector: {name} made a {kind}: change ARPO's episodes, or copies of them.")
            episode.take_edits(f"learner_connector: {name}")
    return left
