"""The measured app: a save of a source, and the update of its group's row, in four designs.

folds   a view whose rows are written as updates arrive; pending updates are folded together
paced   the same view with the default declaration: a busy row is written once a second
talk    the talk's transactional sequence, taken literally: a marker for each source in each group,
        a task for each update. Its task cannot join the transaction any more, so it may be lost.
        The talk's limit of one task a second is left out.
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


class Paced(_Source):
    """A source of the view whose rows are paced."""


class Student(_Source):
    """A source of the talk's view."""


class Inlined(_Source):
    """A source saved together with its group's row."""


class ByGroup(View):
    """The number of a group's sources."""

    source = Gathered
    row_rate: ClassVar[float | None] = None

    @staticmethod
    def contributions(source: Gathered) -> Contributions:
        return {source.group: {}}


class PacedByGroup(View):
    """The number of a group's sources, with rows written at the service's sustained rate."""

    source = Paced

    @staticmethod
    def contributions(source: Paced) -> Contributions:
        return {source.group: {}}


GROUPS = {
    "folds": (Gathered, ViewGroup("gathered", ByGroup, queue="bench"), ByGroup),
    "paced": (Paced, ViewGroup("paced", PacedByGroup, queue="bench"), PacedByGroup),
}


# The talk's code


class Marker(ndb.Model):
    """The progress of a source, or, under a group's name, the progress known to the group."""

    sequence = ndb.IntegerProperty(indexed=False, default=0)
    present = ndb.BooleanProperty(indexed=False)


class GroupCount(ndb.Model):
    """A row of the talk's view."""

    count = ndb.IntegerProperty(indexed=False, default=0)


@dataclass(frozen=True)
class Present:
    """A change by which a source joins or leaves a group."""

    student: str
    group: int
    sequence: int
    present: bool


@task("/tasks/bench/apply", queue="bench")
def apply(clients: Clients, args: Present) -> None:
    """Apply the change to the group, unless the group knows of a later change."""
    transact(lambda: _applied(args))


def _applied(args: Present) -> None:
    group_key = ndb.Key(GroupCount, args.group)
    marker_key = ndb.Key(Marker, f"{args.group}:{args.student}")
    group, marker = ndb.get_multi([group_key, marker_key])
    group, marker = group or GroupCount(key=group_key), marker or Marker(key=marker_key)
    if marker.sequence >= args.sequence:
        return
    was_present, marker.present = marker.present, args.present
    marker.sequence = args.sequence
    group.count += int(args.present) - int(bool(was_present))
    ndb.put_multi([group, marker])


def update(clients: Clients, id_: str, group: int) -> None:
    """Save a source and enqueue the changes of its groups."""
    student, marker = ndb.get_multi([ndb.Key(Student, id_), ndb.Key(Marker, id_)])
    old_group = student.group if student else None
    marker = marker or Marker(id=id_)
    marker.sequence += 1
    ndb.put_multi([Student(id=id_, group=group), marker])
    apply.enqueue(clients, Present(id_, group, marker.sequence, present=True))
    if old_group is not None:
        apply.enqueue(clients, Present(id_, old_group, marker.sequence, present=False))


# The naive design


class GroupTotal(ndb.Model):
    """A row that each save writes."""

    count = ndb.IntegerProperty(indexed=False, default=0)


def save_inline(source: Inlined) -> None:
    """Save a source and count it in its group, once."""
    total_key = ndb.Key(GroupTotal, source.group)
    stored, total = ndb.get_multi([source.key, total_key])
    if stored is None:
        total = total or GroupTotal(key=total_key)
        total.count += 1
        ndb.put_multi([source, total])


# The rows of the designs without views.
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
