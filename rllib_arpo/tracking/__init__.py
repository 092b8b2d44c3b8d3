"""How a run reports to its user: the console (`console.py`), the metrics of an iteration, and files in its folder."""
