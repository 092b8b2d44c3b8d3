"""Attention over packed trees: a token attends only to its ancestors, and is computed once for all of its paths."""
