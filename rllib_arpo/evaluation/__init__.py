"""Scores models on benchmarks: `arguments` and `plan` choose questions, `runner` asks them, `results` keeps answers.

`metrics`, `report` and `entropy` compute and print the figures.
"""
