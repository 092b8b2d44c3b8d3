"""Asks every question of a run's data once: rows that cannot be asked would end the run when they come up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_arpo.doctor.check_lines import Check, Mark
from rllib_arpo.envs.env_config import read_env_config
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.prompt import asked_alone, build_prompt
from rllib_arpo.envs.registry import ENVIRONMENTS, with_task
from rllib_arpo.rollout.make_env import complete_env_config

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    from rllib_arpo.arpo_config import ARPOConfig


def data_checks(config: ARPOConfig) -> list[Check]:
    """A line for the questions of training, and one for those of evaluation.

    Raises:
        ValueError: the environment or its data are wrong as a whole.
    """
    checks = [_check("training data", config)]
    evaluation = config.get_evaluation_config_object()
    if config.evaluation_interval and evaluation is not None:
        checks.append(_check("evaluation data", evaluation))
    return checks


def _check(name: str, config: AlgorithmConfig) -> Check:
    if config.env not in ENVIRONMENTS:
        return Check(Mark.OK, name, f"not read: env={config.env!r} is not one of {', '.join(ENVIRONMENTS)}")
    env_config, task, tools = read_env_config(with_task(config.env, complete_env_config(config)))
    if task.num_questions is None:
        return Check(Mark.OK, name, "generated without end")
    chat = env_config.make_chat()
    protocol = env_config.make_protocol(tools, chat)
    bad = []
    for number in range(task.num_questions):
        try:
            question = task.question(number, tuple(tools))
            if env_config.world is None:  # A world ends the prompt when it is reset.
                build_prompt(chat, protocol, asked_alone(question, env_config), env_config)
        except DataError as error:
            bad.append(str(error))
    if not bad:
        return Check(Mark.OK, name, f"all {task.num_questions:,} questions can be asked")
    found = f"{len(bad):,} of {task.num_questions:,} questions cannot be asked. {min(bad)}"
    if config.on_bad_row == "skip":
        return Check(Mark.WARNING, name, found.rstrip("."), "They are left out and counted (questions_given_up).")
    return Check(Mark.MISSING, name, found.rstrip("."), 'Mend them, or set on_bad_row="skip".')
