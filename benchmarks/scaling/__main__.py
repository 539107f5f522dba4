"""Runs this benchmark alone: `python -m benchmarks.scaling`."""

from benchmarks.scaling.benchmark import main

if __name__ == "__main__":
    main()
