"""The measured app: a save and its updates, in four designs.

save       through the view layer, with 0, 1 or 3 views of the source
put        a bare put of the source and nothing else: the upper bound
inline     one transaction for the source and the aggregate of its group: the naive design
recompute  a put, then a query that recounts the aggregate of the group
"""

from __future__ import annotations

from typing import Any, ClassVar

from flask import Flask
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from rollforward.datastore.transactions import transact
from rollforward.materialized_views import Contributions, View, ViewGroup, ViewMaintenance
from rollforward.registry import Registry

GRADES = 12
HOUSES = 7


class _Source(ndb.Model):
    grade = ndb.IntegerProperty()
    house = ndb.IntegerProperty(indexed=False)
    points = ndb.IntegerProperty(indexed=False)


class Seen0(_Source):
    """A source that contributes to no row."""


class Seen1(_Source):
    """A source of one view."""


class Seen3(_Source):
    """A source of three views."""


class Bare(_Source):
    """A source of no view."""


class Total(ndb.Model):
    """The aggregate of a group, for the designs without a view."""

    count = ndb.IntegerProperty(indexed=False, default=0)
    points = ndb.IntegerProperty(indexed=False, default=0)


class _Unpaced(View):
    row_rate: ClassVar[float | None] = None


class Nothing(_Unpaced):
    """A view without contributions."""

    source = Seen0

    @staticmethod
    def contributions(source: Seen0) -> Contributions:
        return {}


class ByGrade(_Unpaced):
    """The totals by grade, in twelve rows."""

    source = Seen1

    @staticmethod
    def contributions(source: Seen1) -> Contributions:
        return {source.grade: {"points": source.points}}


class First(_Unpaced):
    """The totals by grade, one of three views."""

    source = Seen3

    @staticmethod
    def contributions(source: Seen3) -> Contributions:
        return {source.grade: {"points": source.points}}


class Second(_Unpaced):
    """The totals by house, one of three views."""

    source = Seen3

    @staticmethod
    def contributions(source: Seen3) -> Contributions:
        return {source.house: {"points": source.points}}


class Third(_Unpaced):
    """The totals by grade and house, one of three views."""

    source = Seen3

    @staticmethod
    def contributions(source: Seen3) -> Contributions:
        return {(source.grade, source.house): {}}


GROUPS = {
    0: (Seen0, ViewGroup("none", Nothing, queue="bench")),
    1: (Seen1, ViewGroup("one", ByGrade, queue="bench")),
    3: (Seen3, ViewGroup("three", First, Second, Third, queue="bench")),
}


def serve() -> Flask:
    """Return the app."""
    builds = [ViewMaintenance(views, queue="bench") for _, views in GROUPS.values()]
    app, clients = app_for(Registry(*builds))

    @app.get("/bench/<design>/<int:number>")
    def bench(design: str, number: int) -> Any:
        if design == "put":
            source(Bare, number).put()
        elif design == "inline":
            transact(lambda: inline(source(Bare, number)))
        elif design == "recompute":
            recompute(source(Bare, number))
        else:
            kind, views = GROUPS[int(design)]
            views.save(clients, source(kind, number))
        return "", 204

    return app


def source(kind: type[_Source], number: int) -> Any:
    """Return a source, which only depends on kind and number."""
    spread = f"{(number * 2654435761) % 2**32:08x}"
    return kind(id=spread, grade=number % GRADES, house=number % HOUSES, points=number % 100)


def inline(bare: Bare) -> None:
    """Save a source and add it to its total, once."""
    total_key = ndb.Key(Total, bare.grade + 1)
    stored, total = ndb.get_multi([bare.key, total_key])
    if stored is not None:
        return
    total = total or Total(key=total_key)
    total.count += 1
    total.points += bare.points
    ndb.put_multi([bare, total])


def recompute(bare: Bare) -> None:
    """Save a source and recount its group."""
    bare.put()
    group = Bare.query(Bare.grade == bare.grade).fetch()
    points = sum(member.points for member in group)
    Total(id=bare.grade + 1, count=len(group), points=points).put()
