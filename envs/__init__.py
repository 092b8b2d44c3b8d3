"""Environments of language models that call tools (installed as `rllib_arpo.envs`)."""
