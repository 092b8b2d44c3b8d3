"""Attention over packed trees: a token attends to its ancestors alone, and is computed once for all of its paths."""
