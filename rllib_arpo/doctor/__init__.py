"""For the command doctor: checks of this machine (machine_checks), and whether a run fits into its memory
(recipe -> memory_budget, placement -> budget_report); both as lines of check_lines."""
