"""ARPO (Agentic Reinforced Policy Optimization, arXiv 2507.19849) as an algorithm plugin for Ray RLlib."""
