"""A pipeline whose records leave by each kind of sink, and what has come out of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.fork_join import entities as fork_join
from rollforward.materialized_views import Contributions, View, ViewGroup, ViewMaintenance
from rollforward.materialized_views import entities as materialized_views
from rollforward.outbox import entities as outbox
from rollforward.runtime import Clients
from rollforward.streams import Pipeline, PushedRecord
from rollforward.streams import entities as streams
from rollforward.streams.connectors.sinks import EffectSink, ForkJoinSink, TaskSink, ViewSink
from rollforward.streams.model.sink import SinkRecord
from rollforward.tasks import task
from tests.infra.world import Services, World
from tests.rollforward.fork_join.tally_queue import AT_ONCE, Mark, MarkTally
from tests.rollforward.streams.harness import PACE, delete_rows


class OutletNote(ndb.Model):
    """What a task was told; its key is the record's id at the sink."""

    label = ndb.TextProperty()
    runs = ndb.IntegerProperty(indexed=False, default=0)


class OutletVisit(ndb.Model):
    """A source of a view."""

    path = ndb.TextProperty()
    size = ndb.IntegerProperty(indexed=False)


class VisitsByPath(View):
    source = OutletVisit

    @staticmethod
    def contributions(visit: OutletVisit) -> Contributions:
        return {visit.path: {"size": visit.size}}


VISITS = ViewGroup("outlets", VisitsByPath)


@dataclass(frozen=True)
class Note:
    record: str
    label: str


@task(queue="default")
def note_outlet(clients: Clients, args: Note) -> None:
    """Count the runs for one record."""

    def body() -> None:
        row = OutletNote.get_by_id(args.record) or OutletNote(id=args.record)
        row.label, row.runs = args.label, row.runs + 1
        row.put()

    transact(body)


CALLED: list[SinkRecord] = []


def call_outside(clients: Clients, record: SinkRecord) -> None:
    CALLED.append(record)


def _note(record: SinkRecord) -> Note:
    return Note(record.id, record.value["label"])


def _mark(record: SinkRecord) -> Mark:
    return Mark(record.value["label"])


def _visit(record: SinkRecord) -> OutletVisit:
    value = record.value
    return OutletVisit(id=value["label"], path=value["path"], size=value["size"])


OUTLETS = Pipeline(
    "outlets",
    sinks=[
        TaskSink("visits", note_outlet, _note, name="notes"),
        ForkJoinSink(
            "visits", AT_ONCE, key=lambda visit: visit["path"], item=_mark, name="marks"
        ),
        ViewSink(
            "visits", VISITS, _visit, name="rows",
            replaces=lambda old, new: new.size >= old.size,
        ),
        EffectSink("visits", call_outside, name="calls"),
    ],
    intervals=1,
)  # fmt: skip


def outlets_world(services: Services) -> World:
    world = World(
        services, streams=[OUTLETS], tasks=[note_outlet], fork_joins=[AT_ONCE],
        builds=[ViewMaintenance(VISITS)],
    )  # fmt: skip
    world.clients.process_state.get_or_create("streams config", lambda: PACE)
    return world


def visits(*labels: str, path: str = "/", **more: Any) -> list[PushedRecord]:
    values = [(label, {"label": label, "path": path, "size": 10, **more}) for label in labels]
    return [PushedRecord(label, value, 1_000 + n) for n, (label, value) in enumerate(values)]


def notes() -> Counter[str]:
    """Return how many tasks were created with each label."""
    return Counter(row.label for row in OutletNote.query().fetch())


def marks(path: str = "/") -> Counter[str]:
    """Return how often each label was folded."""
    row = MarkTally.get_by_id(path)
    return Counter(row.labels if row else ())


def rows(clients: Clients) -> dict[Any, tuple[int, Any]]:
    """Return the rows of the view: how many sources, and the sum of their sizes."""
    found = VISITS.read(clients, VisitsByPath)
    return {row.name: (row.count, row.sum("size")) for row in found.rows}


def calls() -> Counter[str]:
    """Return how many records have called outside with each label, whatever was repeated."""
    return Counter(value for _, value in {(each.id, each.value["label"]) for each in CALLED})


def is_idle() -> bool:
    """Return whether nothing is on its way."""
    kinds = (streams.StreamChunk, outbox.OutboxTask, fork_join.WorkPack)
    return not any(kind.query().get(keys_only=True) for kind in kinds)


def forget() -> None:
    """Begin with nothing."""
    CALLED.clear()
    delete_rows(streams, outbox, fork_join, materialized_views)
    for kind in (OutletNote, OutletVisit, MarkTally):
        ndb.delete_multi(kind.query().fetch(keys_only=True))
