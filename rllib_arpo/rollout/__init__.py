"""The rollout: a driver hands questions to env runners, which sample a tree of trajectories for each of them."""
