"""Measured costs of operations on this stack: runs, and the rows that a run writes and reads.

NumbersRun
    Key: a random id of 128 bits, in hex.
    Queries: newest first, by `started`. Single-property index.
    Growth: one row for each run; a new run deletes all but the last 50.

NumberScratch
    Key: "<probe>-<number>": a row that a probe writes and reads. The next run writes it again.
    Queries: tens = ... in key order. Single-property index.
    Growth: some 600 rows in all.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb


class NumbersRun(ndb.Model):
    """One run of all probes, and their results so far."""

    started = ndb.DateTimeProperty(required=True)
    machine = ndb.JsonProperty(indexed=False, required=True)  # {"python", "cpu", "platform", ...}
    # {probe: {"samples_ms": [...], "note", "at_ms"}}; a probe that was impossible has no samples.
    results = ndb.JsonProperty(indexed=False, default={})


class NumberScratch(ndb.Model):
    """Something to write and to read."""

    tens = ndb.IntegerProperty(default=0)
    count = ndb.IntegerProperty(indexed=False, default=0)
    content = ndb.BlobProperty(indexed=False, default=b"")


def numbers_run_key(run_id: str) -> Any:
    """Return the key of a run."""
    return ndb.Key(NumbersRun, run_id)


def scratch_key(probe: str, number: int) -> Any:
    """Return the key of one of a probe's rows."""
    return ndb.Key(NumberScratch, f"{probe}-{number:04d}")


def newest_runs() -> Any:
    """Return a query for runs, newest first."""
    return NumbersRun.query().order(-NumbersRun.started)


def scratch_of(tens: int) -> Any:
    """Return a query for the rows of one number, in key order."""
    return NumberScratch.query(NumberScratch.tens == tens).order(NumberScratch._key)
