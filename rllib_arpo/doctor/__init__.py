"""The command doctor: checks of this machine (`checks`), and whether a run fits into its memory (`budget`)."""
