"""Runs `python -m rllib_arpo COMMAND`."""

import sys

from rllib_arpo.commands import main

if __name__ == "__main__":
    sys.exit(main())
