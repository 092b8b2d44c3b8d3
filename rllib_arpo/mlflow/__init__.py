"""Logs runs to MLflow from the files in their folders, and from nothing else.

`run_log` makes an MLflow run agree with the folder of a trial. `callback` calls it after every result of Tune, the
command `log-run` by hand. Importing this package does not import mlflow.
"""
