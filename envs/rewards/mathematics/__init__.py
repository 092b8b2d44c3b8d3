"""Equality of answers in mathematics.

The worker process of `accuracy` knows this folder as the package `mathematics`. All modules but `accuracy` and
`formulas` run there, or are imported there: they import each other by relative names, and nothing of `rllib_arpo`,
which would load Ray.
"""
