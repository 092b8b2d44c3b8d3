"""The plots of a run: run_data reads results and record, iterations draws results, trees the record, gallery all.

A plot is a pure function of `RunData`. Where a run lacks what a plot shows, the sentence of a `MissingDataError` stands
in the place of the figure.
"""
