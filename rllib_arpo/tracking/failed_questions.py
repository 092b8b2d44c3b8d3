"""Keeps the questions that ended a run, so that users can inspect and reproduce the failure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.rollout.episodes import episode_to_tree

#: The file's name; each line holds one `QuestionTree` under its field names.
FAILED_QUESTIONS_FILE = "failed_questions.jsonl"


def save_failed_questions(folder: Path, episodes: Sequence[MultiAgentEpisode], question_ids: Sequence[str]) -> Path:
    """Appends the trees of these questions to `FAILED_QUESTIONS_FILE` in `folder`; returns its path.

    The file has NaN and infinities as Python's `json` writes and reads them.
    """
    path = folder / FAILED_QUESTIONS_FILE
    trees = map(episode_to_tree, episodes)
    with path.open("a") as file:
        for tree in trees:
            if tree.question_id in question_ids:
                file.write(json.dumps(dataclasses.asdict(tree), default=lambda value: value.tolist()) + "\n")
    return path
