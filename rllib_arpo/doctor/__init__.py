"""For the command doctor: checks of this machine (probe -> machine -> checks -> report), and whether a run fits
(recipe -> memory_budget -> budget_report)."""
