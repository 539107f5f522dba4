"""Runs this benchmark alone: `python -m benchmarks.healing`."""

import os
import sys

from benchmarks.healing.benchmark import main

if __name__ == "__main__":
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    sys.exit(main())
