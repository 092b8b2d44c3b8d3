"""For the command doctor: checks of this machine (machine_checks), and whether a run fits into its memory
(recipe -> budget_report, with the budget of rllib_arpo/learner); both as lines of check_lines.
"""
