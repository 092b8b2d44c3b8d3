"""Worlds, in which trajectories act and which fork with them: games, services, simulated users."""

from __future__ import annotations

from rllib_arpo.envs.worlds.world import Call, Opening, Reply, WholeTurn, World, WorldLost

__all__ = ["Call", "Opening", "Reply", "WholeTurn", "World", "WorldLost"]
