"""The parts of `release/gpu_check.py`: `parts` lists them, `process` runs one, `report` takes its figures."""
