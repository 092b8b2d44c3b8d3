"""Draws the plots of a run: `iterations` from its results, `trees` from its record; `gallery` draws all of them.

A plot is a pure function of `RunData`. If a run lacks data for a plot, the page shows the sentence of a
`MissingDataError` instead.
"""
