"""The app that is measured: a save of a source, and the update of its group's row, in four ways.

folds   a view whose rows are written as updates come; what waits is folded together
paced   the same view as it is declared by default: a busy row is written once a second
talk    the talk's transactional sequence, taken literally: a marker for each source in each group,
        a task for each update. Its task cannot join the transaction any more, so it may be lost;
        its limit of one task a second is left out.
inline  one transaction for the source and the row of its group: the naive design
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from flask import Flask
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from rollforward.datastore.transactions import transact
from rollforward.materialized_views import Contributions, View, ViewGroup, ViewMaintenance
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.tasks import task

SPREAD = 1_000  # Group n of the load over r rows is r * SPREAD + n.


class _Source(ndb.Model):
    group = ndb.IntegerProperty(indexed=False)


class Gathered(_Source):
    """A source of the view without a pace."""


class Told(_Source):
    """A source of the view whose rows are paced."""


class Student(_Source):
    """A source of the talk's view."""


class Inlined(_Source):
    """A source that is saved with its group's row."""


class ByGroup(View):
    """The number of a group's sources."""

    source = Gathered
    row_rate: ClassVar[float | None] = None

    @staticmethod
    def contributions(source: Gathered) -> Contributions:
        return {source.group: {}}


class PacedByGroup(View):
    """The number of a group's sources, each row written at the rate of the service."""

    source = Told

    @staticmethod
    def contributions(source: Told) -> Contributions:
        return {source.group: {}}


GROUPS = {
    "folds": (Gathered, ViewGroup("gathered", ByGroup, queue="bench"), ByGroup),
    "paced": (Told, ViewGroup("paced", PacedByGroup, queue="bench"), PacedByGroup),
}


# The talk's code


class Marker(ndb.Model):
    """The progress of a source; or, under a group's name, the progress that the group has seen."""

    sequence = ndb.IntegerProperty(indexed=False, default=0)
    present = ndb.BooleanProperty(indexed=False)


class GroupCount(ndb.Model):
    """A row of the talk's view."""

    count = ndb.IntegerProperty(indexed=False, default=0)


@dataclass(frozen=True)
class Present:
    """A source is in a group, or not any more."""

    student: str
    group: int
    sequence: int
    present: bool


@task("/tasks/bench/apply", queue="bench")
def apply(clients: Clients, args: Present) -> None:
    """Apply it to the group, unless the group knows of a later change."""
    transact(lambda: _applied(args))


def _applied(args: Present) -> None:
    group_key = ndb.Key(GroupCount, args.group)
    marker_key = ndb.Key(Marker, f"{args.group}:{args.student}")
    group, marker = ndb.get_multi([group_key, marker_key])
    group, marker = group or GroupCount(key=group_key), marker or Marker(key=marker_key)
    if marker.sequence >= args.sequence:
        return
    old, marker.present = marker.present, args.present
    marker.sequence = args.sequence
    group.count += int(args.present) - int(bool(old))
    ndb.put_multi([group, marker])


def update(clients: Clients, id_: str, new: int) -> None:
    """Save a source and enqueue what follows."""
    student, marker = ndb.get_multi([ndb.Key(Student, id_), ndb.Key(Marker, id_)])
    old = student.group if student else None
    marker = marker or Marker(id=id_)
    marker.sequence += 1
    ndb.put_multi([Student(id=id_, group=new), marker])
    apply.enqueue(clients, Present(id_, new, marker.sequence, present=True))
    if old is not None:
        apply.enqueue(clients, Present(id_, old, marker.sequence, present=False))


# The naive design


class GroupTotal(ndb.Model):
    """A row that is written by each save."""

    count = ndb.IntegerProperty(indexed=False, default=0)


def save_inline(source: Inlined) -> None:
    """Save a source and count it in its group, once."""
    total_key = ndb.Key(GroupTotal, source.group)
    known, total = ndb.get_multi([source.key, total_key])
    if known is None:
        total = total or GroupTotal(key=total_key)
        total.count += 1
        ndb.put_multi([source, total])


# The rows of the designs that are no views.
ROW_KINDS = {"talk": GroupCount, "inline": GroupTotal}


# The app


def serve() -> Flask:
    """Return the app."""
    builds = [ViewMaintenance(views, queue="bench") for _, views, _ in GROUPS.values()]
    app, clients = app_for(Registry(apply, *builds))

    @app.get("/bench/<design>/<int:rows>/<int:number>")
    def bench(design: str, rows: int, number: int) -> Any:
        id_, group = f"{(number * 2654435761) % 2**32:08x}", rows * SPREAD + number % rows
        if design == "talk":
            transact(lambda: update(clients, id_, group))
        elif design == "inline":
            transact(lambda: save_inline(Inlined(id=id_, group=group)))
        else:
            kind, views, _ = GROUPS[design]
            views.save(clients, kind(id=id_, group=group))
        return "", 204

    return app
