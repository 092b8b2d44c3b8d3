"""What goes wrong in training, as curves: runs of the small model's recipe with one mistake each (docs/metrics.md).

`python -m release.symptoms` draws the pictures of docs/ from the rows that are kept; with `--run` it first makes the
rows again.
"""
