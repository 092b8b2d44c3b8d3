"""The keywords of `ARPOConfig`: one table a method, from which defaults, checks and documentation follow."""
