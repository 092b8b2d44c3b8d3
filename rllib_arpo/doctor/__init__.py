"""What the command doctor finds out: checks of this machine, and whether a run fits into its memory (budget)."""
