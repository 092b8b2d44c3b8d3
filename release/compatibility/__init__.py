"""What this package uses of vLLM and torch, and what the supported versions of both have.

`uses` reads the one from our own source, `facts` reads the other from wheels, and `facts.json` keeps it. The tests
compare both, since no machine has all versions installed.
"""
