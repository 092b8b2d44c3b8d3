"""Draws the plots of a run: `iterations` from its results, `trees` from its record; `gallery` draws all of them.

A plot is a pure function of `RunData`. If a run lacks data for a plot, `rllib-arpo show` says so (`MissingDataError`).
"""
