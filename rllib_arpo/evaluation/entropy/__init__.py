"""A model's uncertainty: entropies token by token, their rise after tool responses, and the forks this would cause.

Turns are rows of the record. `measures` are pure functions of them, `summary` has the results, as JSON and as tables,
`figure` draws them.
"""
