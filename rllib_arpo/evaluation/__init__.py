"""Evaluates models on benchmarks: `arguments` and `plan` say what is asked, `runner` asks, `results` keeps the answers.

`metrics`, `report` and `entropy` say what the answers show.
"""
