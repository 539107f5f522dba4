"""Queries: each finds the rows in its range, in its order, and no neighbours."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.cloud import ndb

from models.grades import SampleStudent, Student, Teacher, students_of, teachers_of
from models.invitations import Guest, Party, guests_of, newest_parties
from models.sums import SumAddition
from rollforward.batches import entities as batches
from rollforward.continuations.entities import (
    CANCELLED,
    FINISHED,
    RUNNING,
    ContinuationHeartbeat,
    ContinuationPage,
    ContinuationRun,
    expired_runs,
    heartbeats_of,
    pages_of,
    pages_of_chain,
    running_runs,
    untold_runs,
)
from rollforward.continuations.upload_entities import UploadChunk, expired_chunks
from rollforward.counters import entities as counters
from rollforward.datastore.expiry import expired
from rollforward.fork_join.entities import (
    WorkOutcome,
    WorkPack,
    WorkReceipt,
    packs_of_epoch,
    packs_of_queue,
    packs_with_tag,
    packs_with_tag_prefix,
    parked_packs,
)
from rollforward.materialized_views.entities import (
    RowMarker,
    ViewRow,
    markers_of,
    ranked,
    row_key,
    row_marker_key,
    rows_from,
)
from rollforward.outbox import entities as outbox
from rollforward.tasks.attempt_entities import TaskAttempts, expired_attempts
from rollforward.tasks.dead_task_entities import DeadTask, open_dead_tasks
from tests.infra.world import World

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  Datastore's are naive.
SECOND = datetime.timedelta(seconds=1)


def page(name: str) -> ContinuationPage:
    return ContinuationPage(
        id=name, after="", load_from="", items=[], receipts="", updated_at=NOON, progressed_at=NOON
    )


def run(name: str, **options: Any) -> ContinuationRun:
    return ContinuationRun(
        id=name,
        **{"job": "j", "args": "{}", "spans": [], "page_size": 1, "started": NOON, **options},
    )


def batch(name: str, **options: Any) -> batches.BatchState:
    values = {"policy": "all", "keep_s": 1.0, "created": NOON, "due": NOON, **options}
    return batches.BatchState(id=name, **values)


def letters(name: str) -> batches.BatchPage:
    return batches.BatchPage(id=name, letters=".")


def beat(name: str) -> ContinuationHeartbeat:
    return ContinuationHeartbeat(id=name, expires_at=NOON)


def due(name: str, declaration: str, at: datetime.datetime) -> counters.CounterConfig:
    text = counters.due_text(declaration, at)
    return counters.CounterConfig(id=name, shards=1, read_shards=1, generation=1, due=text)


def counted(name: str, expires: str) -> counters.CounterReceipt:
    return counters.CounterReceipt(id=name, commit="c", digest="d", expires=expires)


def dead(name: str, **options: Any) -> DeadTask:
    values = dict.fromkeys(("path", "queue", "task_name", "body", "reason"), "x")
    return DeadTask(id=name, **values, created=NOON, updated=NOON, **options)


def pack(name: str, tag: str | None = None) -> WorkPack:
    return WorkPack(id=name, batch_key="k", items="[]", tag=tag)


def receipt(name: str, expires: str) -> WorkReceipt:
    return WorkReceipt(id=name, pack="p", position=0, digest="d", expires=expires)


def outcome(name: str, expires: str) -> WorkOutcome:
    return WorkOutcome(id=name, results=[], expires=expires)


def addition(name: str, expires: str) -> SumAddition:
    return SumAddition(id=name, amount=1, expires=expires)


def student(name: str) -> Student:
    return Student(id=name, name="x", grade=1, points=1)


def guest(name: str) -> Guest:
    values = {"name": "x", "address": "x", "import_id": "i", "import_number": 0, "line": 0}
    return Guest(id=name, **values)


def party(name: str, created: datetime.datetime) -> Party:
    return Party(id=name, title="t", host="h", place="p", when=NOON, created=created)


def row(name: str) -> ViewRow:
    return ViewRow(id=name, counts={}, sums={}, fingerprint="0", applied=NOON)


def marker(of: str, source: str, *ranks: str) -> RowMarker:
    key = row_marker_key(row_key("t.1.1", of), source)
    return RowMarker(key=key, sequence=1, measures={}, ranks=list(ranks))


def sent(name: str, tag: str | None = None) -> outbox.OutboxTask:
    return outbox.OutboxTask(id=name, path="/tasks/x", queue="q", body="{}", tag=tag)


Case = tuple[Callable[[], Any], Callable[[], Sequence[Any]], Callable[[], Sequence[Any]]]
# The query; what it finds, in its order; what stands beside that.
CASES: dict[str, Case] = {
    "pages of a run": (
        lambda: pages_of("r"),
        lambda: [page("r:0000:00000000"), page("r:0000:00000001"), page("r:0001:00000000")],
        lambda: [page("q:9999:99999999"), page("r"), page("r;"), page("ra:0000:00000000")],
    ),
    "pages behind a page": (
        lambda: pages_of("r", start_after="r:0000:00000001"),
        lambda: [page("r:0000:00000002"), page("r:0001:00000000")],
        lambda: [page("r:0000:00000000"), page("r:0000:00000001"), page("s:0000:00000002")],
    ),
    "pages of a chain": (
        lambda: pages_of_chain("r", 1, 2),
        lambda: [page("r:0001:00000002"), page("r:0001:00000010")],
        lambda: [page("r:0001:00000001"), page("r:0001;"), page("r:0002:00000002")],
    ),
    "heartbeats": (
        lambda: heartbeats_of("r"),
        lambda: [beat("r:0000:00000000:a"), beat("r:0001:00000000:b")],
        lambda: [beat("q:0000:00000000:a"), beat("r:"), beat("r;"), beat("ra:0:0:a")],
    ),
    "batches that the sweep wakes": (
        lambda: batches.due_batches(NOON),
        lambda: [batch("b", due=NOON - SECOND), batch("a", due=NOON)],
        lambda: [batch("c", due=NOON + SECOND), batch("d", due=None)],
    ),
    "batches that the sweep removes": (
        lambda: batches.removable_batches(NOON),
        lambda: [batch("b", remove_at=NOON - SECOND), batch("a", remove_at=NOON)],
        lambda: [batch("c", remove_at=NOON + SECOND), batch("d", due=NOON)],
    ),
    "batches that run": (
        lambda: batches.running_batches(),
        lambda: [batch("a"), batch("b")],
        lambda: [batch("c", state=batches.COMPLETED)],
    ),
    "batches in a batch": (
        lambda: batches.batches_in("p:1"),
        lambda: [batch("a", parent="p:1"), batch("b", parent="p:1")],
        lambda: [batch("c", parent="p:10"), batch("d")],
    ),
    "batches of a member": (
        lambda: batches.batches_of("p:1"),
        lambda: [batch("a", member="p:1"), batch("b", member="p:1")],
        lambda: [batch("c", member="p:10"), batch("d")],
    ),
    "pages of a batch": (
        lambda: batches.pages_within("b:1"),
        lambda: [letters("b:1:p:000000"), letters("b:1:p:000001"), letters("b:1:q:000000")],
        lambda: [letters("b:10:p:000000"), letters("b:1:"), letters("b:1;"), letters("a:1:p:0")],
    ),
    "pages of an addition, behind one": (
        lambda: batches.pages_within("b:1:p", start_after="b:1:p:000000"),
        lambda: [letters("b:1:p:000001")],
        lambda: [letters("b:1:p:000000"), letters("b:1:q:000000"), letters("b:2:p:000001")],
    ),
    "work of a batch": (
        lambda: batches.work_within("b:1"),
        lambda: [batches.BatchWork(id="b:1:p:000000", tasks=[], members=[], first=0, digest="d")],
        lambda: [batches.BatchWork(id="b:10:p:000000", tasks=[], members=[], first=0, digest="d")],
    ),
    "results of a page": (
        lambda: batches.results_within("b:1:p:000000"),
        lambda: [batches.BatchResults(id=f"b:1:p:000000:00000{n}", results=[]) for n in range(2)],
        lambda: [batches.BatchResults(id="b:1:p:000001:000000", results=[])],
    ),
    "runs that go on": (
        lambda: running_runs(),
        lambda: [run("a", state=RUNNING), run("b", state=RUNNING)],
        lambda: [run("c", state=CANCELLED), run("d", state=FINISHED), run("e", state="waiting")],
    ),
    "runs that go on, behind one": (
        lambda: running_runs(start_after="b"),
        lambda: [run("c"), run("d")],
        lambda: [run("a"), run("b"), run("e", state=FINISHED)],
    ),
    "runs that have not told": (
        lambda: untold_runs(),
        lambda: [run("a", untold=True), run("b", untold=True)],
        lambda: [run("c", untold=False), run("d")],
    ),
    "runs that have not told, behind one": (
        lambda: untold_runs(start_after="b"),
        lambda: [run("c", untold=True)],
        lambda: [run("a", untold=True), run("b", untold=True), run("d")],
    ),
    "runs whose pages go": (
        lambda: expired_runs(NOON),
        lambda: [run("b", pages_until=NOON - 2 * SECOND), run("a", pages_until=NOON - SECOND)],
        lambda: [run("c", pages_until=NOON), run("d", pages_until=NOON + SECOND), run("e")],
    ),
    "dead tasks": (
        lambda: open_dead_tasks(),
        lambda: [dead("a"), dead("b", resolved=False)],
        lambda: [dead("c", resolved=True)],
    ),
    "packs of an epoch": (
        lambda: packs_of_epoch("q", "e"),
        lambda: [pack("q|e|1|0|a"), pack("q|e|2|0|b")],
        lambda: [pack("q|d|1|0|a"), pack("q|e|"), pack("q|e}"), pack("q|ea|1|0|a")],
    ),
    "packs of a queue": (
        lambda: packs_of_queue("q"),
        lambda: [pack("q|0.e|1|0|a"), pack("q|f.e|1|0|b")],
        lambda: [pack("p|0.e|1|0|a"), pack("q|"), pack("q|}"), pack("qq|0.e|1|0|a")],
    ),
    "packs of a partition": (
        lambda: packs_of_queue("q", "7"),
        lambda: [pack("q|70.e|1|0|a"), pack("q|7f.e|1|0|b")],
        lambda: [pack("q|6f.e|1|0|a"), pack("q|7"), pack("q|7}"), pack("q|80.e|1|0|a")],
    ),
    "packs behind a pack": (
        lambda: packs_of_queue("q", "7", after="q|75.e|1|0|a"),
        lambda: [pack("q|75.e|1|0|b"), pack("q|76.e|1|0|a")],
        lambda: [pack("q|75.e|1|0|a"), pack("q|70.e|1|0|a"), pack("q|80.e|1|0|a")],
    ),
    "parked packs": (
        lambda: parked_packs("q"),
        lambda: [pack("parked:q|0.e|1|0|a"), pack("parked:q|f.e|1|0|b")],
        lambda: [pack("q|0.e|1|0|a"), pack("parked:p|0.e|1|0|a"), pack("parked:qq|0.e|1|0|a")],
    ),
    "packs of a tag": (
        lambda: packs_with_tag("t"),
        lambda: [pack("a", "t"), pack("b", "t")],
        lambda: [pack("c", "s"), pack("d", "tt"), pack("e")],
    ),
    "packs of tags": (
        lambda: packs_with_tag_prefix("t"),
        lambda: [pack("b", "t"), pack("a", "ta"), pack("d", "t\U0001f600")],
        lambda: [pack("c", "s"), pack("e", "u"), pack("f"), pack("g", "t\U0010ffff")],
    ),
    "receipts that have expired": (
        lambda: expired(WorkReceipt, "7", "720300501T12"),
        lambda: [receipt("a", "720300501T10"), receipt("b", "720300501T11")],
        lambda: [receipt("c", "720300501T12"), receipt("d", "620300501T11"), receipt("e", "8")],
    ),
    "outcomes that have expired": (
        lambda: expired(WorkOutcome, "7", "720300501T12"),
        lambda: [outcome("a", "720300501T10"), outcome("b", "720300501T11")],
        lambda: [outcome("c", "720300501T12"), outcome("d", "620300501T11"), outcome("e", "8")],
    ),
    "forms that have expired": (
        lambda: expired(SumAddition, "7", "720300501T12"),
        lambda: [addition("a", "720300501T10"), addition("b", "720300501T11")],
        lambda: [addition("c", "720300501T12"), addition("d", "620300501T11"), addition("e", "8")],
    ),
    "counters that are due": (
        lambda: counters.due_configs("likes", NOON),
        lambda: [due("b", "likes", NOON - SECOND), due("a", "likes", NOON)],
        lambda: [
            due("c", "likes", NOON + SECOND),
            due("d", "like", NOON - SECOND),
            due("e", "likes-too", NOON - SECOND),
            counters.CounterConfig(id="f", shards=1, read_shards=1, generation=1),
        ],
    ),
    "receipts of increments that may go": (
        lambda: expired(counters.CounterReceipt, "7", "720300501T12"),
        lambda: [counted("a", "720300501T10"), counted("b", "720300501T11")],
        lambda: [counted("c", "720300501T12"), counted("d", "620300501T11"), counted("e", "8")],
    ),
    "attempts that nobody needs": (
        lambda: expired_attempts(NOON),
        lambda: [
            TaskAttempts(id="b", first=NOON, expires=NOON - SECOND),
            TaskAttempts(id="a", first=NOON, expires=NOON),
        ],
        lambda: [TaskAttempts(id="c", first=NOON, expires=NOON + SECOND)],
    ),
    "chunks that may go": (
        lambda: expired_chunks(NOON),
        lambda: [
            UploadChunk(id="b", content=b"", expires=NOON - 2 * SECOND),
            UploadChunk(id="a", content=b"", expires=NOON - SECOND),
        ],
        lambda: [UploadChunk(id="c", content=b"", expires=NOON)],
    ),
    "students": (
        lambda: students_of("demo"),
        lambda: [student("demo:a"), student("demo:b")],
        lambda: [student("demo"), student("demo:"), student("demo;"), student("demoa:a")],
    ),
    "students behind one": (
        lambda: students_of("demo", after="b"),
        lambda: [student("demo:c")],
        lambda: [student("demo:a"), student("demo:b"), student("demoa:c")],
    ),
    "students of a sample": (
        lambda: students_of("sample-1"),
        lambda: [SampleStudent(id="sample-1:a", name="x", grade=1, points=1)],
        lambda: [
            student("sample-1:b"),
            SampleStudent(id="sample-10:a", name="", grade=1, points=1),
        ],
    ),
    "teachers": (
        lambda: teachers_of("demo"),
        lambda: [Teacher(id="demo:a", name="x", grade=1), Teacher(id="demo:b", name="x", grade=1)],
        lambda: [
            Teacher(id=name, name="x", grade=1) for name in ("demo:", "demo;", "a:a", "demos:a")
        ],
    ),
    "guests": (
        lambda: guests_of("p1"),
        lambda: [guest("p1:a"), guest("p1:b")],
        lambda: [guest("p0:a"), guest("p1:"), guest("p1;"), guest("p10:a")],
    ),
    "guests behind one": (
        lambda: guests_of("p1", after="p1:b"),
        lambda: [guest("p1:c")],
        lambda: [guest("p1:a"), guest("p1:b"), guest("p2:c")],
    ),
    "parties": (
        lambda: newest_parties(),
        lambda: [party("a", NOON + SECOND), party("c", NOON), party("b", NOON - SECOND)],
        lambda: [],
    ),
    "rows": (
        lambda: rows_from("t.1.1:"),
        lambda: [row("t.1.1:1"), row("t.1.1:2"), row("t.1.1:\U0001f600")],
        lambda: [
            row("t.1.1:"),
            row("t.1.1:\U0010ffff"),
            row("t.1.1"),
            row("t.1.10:1"),
            row("t.1.2:1"),
            row("s.1.1:1"),
        ],
    ),
    "markers of a row": (
        lambda: markers_of(row_key("t.1.1", "1")),
        lambda: [marker("1", "Pupil:a"), marker("1", "Tutor:a")],
        lambda: [marker("2", "Pupil:a"), marker("10", "Pupil:a")],
    ),
    "markers of a kind": (
        lambda: markers_of(row_key("t.1.1", "1"), kind="Pupil"),
        lambda: [marker("1", "Pupil:a"), marker("1", "Pupil:b")],
        lambda: [marker("1", "Pupil;"), marker("1", "Pupils:a"), marker("1", "A:a")],
    ),
    "markers behind one": (
        lambda: markers_of(
            row_key("t.1.1", "1"), after=row_marker_key(row_key("t.1.1", "1"), "Pupil:b")
        ),
        lambda: [marker("1", "Pupil:c"), marker("1", "Tutor:a")],
        lambda: [marker("1", "Pupil:a"), marker("1", "Pupil:b"), marker("2", "Pupil:c")],
    ),
    "ranks": (
        lambda: ranked("x|"),
        lambda: [marker("1", "Pupil:b", "x|n1", "y|n9"), marker("1", "Pupil:a", "x|n2")],
        lambda: [
            marker("1", "Pupil:c", "w|n1"),
            marker("1", "Pupil:d", "y|n1"),
            marker("1", "P:e"),
        ],
    ),
    "ranks, the greatest first": (
        lambda: ranked("x|", descending=True),
        lambda: [marker("1", "Pupil:a", "x|n2"), marker("1", "Pupil:b", "x|n1")],
        lambda: [marker("1", "Pupil:c", "w|n1"), marker("1", "Pupil:d", "y|n1")],
    ),
    "rows of the outbox behind one": (
        lambda: outbox.outbox_rows("7", after="75"),
        lambda: [sent("76"), sent("7f")],
        lambda: [sent("70"), sent("75"), sent("8"), sent("6f")],
    ),
    "rows of all partitions behind one": (
        lambda: outbox.outbox_rows(after="75"),
        lambda: [sent("76"), sent("8")],
        lambda: [sent("70"), sent("75")],
    ),
    "rows of a tag": (
        lambda: outbox.rows_of_tag("t"),
        lambda: [sent("a", "t"), sent("b", "t")],
        lambda: [sent("c", "s"), sent("d", "tt"), sent("e")],
    ),
    "rows of tags": (
        lambda: outbox.rows_of_tags("t"),
        lambda: [sent("b", "t"), sent("a", "ta"), sent("d", "t\U0001f600")],
        lambda: [sent("c", "s"), sent("e", "u"), sent("f"), sent("g", "t\U0010ffff")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_query_finds_what_is_in_its_range_in_its_order(world: World, case: str) -> None:
    """Neighbours on both sides of each border are not found."""
    query, inside, beside = CASES[case]
    with world.context():
        expected = list(inside())
        ndb.put_multi([*beside(), *expected[::-1]])

        assert [row.key.id() for row in query().fetch()] == [row.key.id() for row in expected]


@pytest.mark.parametrize("name", ["0", "00", "1", "7f", "f", "fz", "zebra", "|", "é"])
def test_each_row_of_the_outbox_is_in_one_partition(world: World, name: str) -> None:
    """Walks reach each row, even with an odd key, and none twice."""
    with world.context():
        sent(name).put()

        nonempty = [p for p in outbox.PARTITIONS if outbox.outbox_rows(p).fetch(keys_only=True)]

        assert len(nonempty) == 1
        assert len(outbox.outbox_rows().fetch(keys_only=True)) == 1
