"""Worlds: what a trajectory acts in, and how it forks."""

from __future__ import annotations

from rllib_arpo.envs.worlds.world import Call, Opening, Reply, WholeTurn, World, WorldLost

__all__ = ["Call", "Opening", "Reply", "WholeTurn", "World", "WorldLost"]
