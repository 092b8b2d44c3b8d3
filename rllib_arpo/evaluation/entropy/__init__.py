"""Where a model is unsure: entropies token by token, their rise after tool responses, and the forks this would cause.

`turns` reads sampled questions, `curves` and `nodes` are pure functions of arrays, `forks` has the rules, `summary` the
results; `table` (parquet), `figure` (PNG) and `report` (console) write them.
"""
