"""Serves a Datastore in memory: `python -m benchmarks.memory PORT`."""

import sys

from benchmarks.memory.server import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]))
