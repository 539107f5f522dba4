"""Measurements: `make bench` runs the ones in __main__, and some are commands of their own.

Each subject has a folder, with the measurements in `benchmark` and the measured app in `app`.
Subjects of a single file, and commands like `python -m benchmarks.emulators`, are at the top level.
`harness` is shared by all.
"""
