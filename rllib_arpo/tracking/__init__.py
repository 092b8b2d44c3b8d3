"""Reports a run to its user: lines on the console, metrics in the result, and warnings."""
