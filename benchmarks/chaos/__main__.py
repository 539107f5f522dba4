"""Runs the command: `python -m benchmarks.chaos`."""

import os
import sys

from benchmarks.chaos.command import main

if __name__ == "__main__":
    os.environ.setdefault("LOG_LEVEL", "ERROR")
    sys.exit(main())
