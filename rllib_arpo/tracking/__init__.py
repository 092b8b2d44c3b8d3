"""A run reports to its user by the console (`console.py`), the metrics of an iteration, and files in its folder."""
