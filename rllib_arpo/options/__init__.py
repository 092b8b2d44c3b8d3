"""Declares the keywords of `ARPOConfig`, a table for each method; defaults, checks and documentation follow from it."""
