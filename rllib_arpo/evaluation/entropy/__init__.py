"""A model's uncertainty: entropies token by token, their rise after tool responses, and the forks this would cause.

Turns are rows of the record. `curves` and `nodes` are pure functions of them, `forks` has the rules, `summary` the
results; `figure` (PNG) and `report` (console) show them.
"""
