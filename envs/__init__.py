"""Environments of language models that call tools (installed as `rllib_arpo.envs`)."""

from rllib_arpo.envs.registry import register_task

__all__ = ["register_task"]
