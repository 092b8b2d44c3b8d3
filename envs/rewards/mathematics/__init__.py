"""Equality of answers in mathematics.

The worker process of `accuracy` knows this folder as the package `mathematics`. The modules that run there (`worker`,
`algebra`, `forms`, `text`) import each other by relative names and nothing else of `rllib_arpo`, since that would load
Ray.
"""
