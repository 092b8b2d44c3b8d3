"""MLflow as a projection of folders: whatever a run has in MLflow is made from the files in the run's folder.

`run_log` makes an MLflow run agree with the folder of a trial or of an evaluation; `callback` does so after every
result of Tune, and the command `log-run` by hand. Importing this package does not import mlflow.
"""
