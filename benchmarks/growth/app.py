"""The apps whose data grows during the measurements.

demos     all demos, including the parties
views     for each size a kind of source, and a view of it with a row for every ten sources
streams   records of a number of keys, two per key, and records counted in a number of intervals
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from flask import Flask
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from pipelines.registry import APP
from rollforward.materialized_views import Contributions, View, ViewGroup, ViewMaintenance
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, Pulled, PullSource, Record

SIZES = (1_000, 10_000, 100_000, 1_000_000)
SOURCES_A_ROW = 10
INTERVALS = (1, 4, 16, 64)  # A declaration has no more; splits create them.
RECORDS_A_KEY, PULLED_AT_ONCE = 2, 100
INTERVALS_KEYS = 10_000
# For the warm-up.
WARM_KEYS, WARM_ROUNDS, WARM_SOURCES = 5_000, 2, 100
FIRST_MS = 1_735_732_800_000


def serve() -> Flask:
    """Return the demos."""
    app, _ = app_for(APP)
    return app


# Views


class Grown(ndb.Model):
    """A source."""

    row = ndb.IntegerProperty(indexed=False)
    points = ndb.IntegerProperty(indexed=False)


def _view(size: int) -> tuple[type[Grown], type[View]]:
    """Return a kind of source, and the view of it."""
    kind = type(f"Grown{size}", (Grown,), {})

    def contributions(source: Grown) -> Contributions:
        return {source.row: {"points": source.points}}

    body = {"source": kind, "row_rate": None, "contributions": staticmethod(contributions)}
    return kind, type(f"OfGrown{size}", (View,), body)


VIEWS = {size: _view(size) for size in (WARM_SOURCES, *SIZES)}
GROUP = ViewGroup("grown", *(view for _, view in VIEWS.values()), queue="bench")
BUILDS = ViewMaintenance(GROUP, queue="bench")


def source(size: int, number: int) -> Grown:
    """Return a source, which only depends on size and number."""
    kind, _ = VIEWS[size]
    spread = f"{(number * 2654435761) % 2**32:08x}"
    return kind(id=spread, row=number % (size // SOURCES_A_ROW), points=number % 97)


def serve_views() -> Flask:
    """Return the app that rebuilds views."""
    app, _ = app_for(Registry(BUILDS))
    return app


# Streams


def by_key(value: Mapping[str, Any]) -> str:
    return str(value["key"])


class Seen(Computation):
    """Counts the records of each key."""

    name = "seen"
    inputs: ClassVar = {"in": by_key}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)


def _read(keys: int, clients: Clients, position: int | None, limit: int) -> Pulled:
    """Return the next records: all keys, spread over all intervals, and then all keys again."""
    begin, count = position or 0, RECORDS_A_KEY * keys
    end = min(begin + min(PULLED_AT_ONCE, limit), count)
    part = [({"key": f"k{n % keys}"}, FIRST_MS + n) for n in range(begin, end)]
    return Pulled(part, end, is_over=end == count)


def _pulled(name: str, keys: int, intervals: int) -> Pipeline:
    origin = PullSource("in", functools.partial(_read, keys), disorder=timedelta(0))
    return Pipeline(name, Seen(), sources=[origin], intervals=intervals)


WARM = [_pulled(f"warm-{number}", WARM_KEYS, 2) for number in range(WARM_ROUNDS)]
BY_KEYS = {size: _pulled(f"grown-{size}", size, 2) for size in SIZES}
BY_INTERVALS = {count: _pulled(f"cut-{count}", INTERVALS_KEYS, count) for count in INTERVALS}


def serve_streams() -> Flask:
    """Return the app that counts records."""
    app, _ = app_for(Registry(*WARM, *BY_KEYS.values(), *BY_INTERVALS.values()))
    return app
