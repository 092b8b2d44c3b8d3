"""Scores models on benchmarks: `arguments` and `plan` choose questions, `runner` asks them, `results` keeps answers.

`metrics`, `report`, `task_entropy` and `curves` compute and show the figures.
"""
