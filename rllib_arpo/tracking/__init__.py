"""How a run reports to its user: MLflow (`mlflow_callback.py`), the console (`console.py`) and the progress bar.

`ARPOMLflowCallback` is imported from its own module: importing this package must not import mlflow.
"""
