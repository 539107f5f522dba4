"""Readers of pull sources: each line, entity and row is read once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from google.api_core.exceptions import ServiceUnavailable
from google.cloud import ndb

from rollforward.continuations.upload_entities import put_upload
from rollforward.materialized_views import ViewMaintenance
from rollforward.runtime import Clients, naive_utc
from rollforward.streams import Computation, Context, Pipeline, PullSource, Record
from rollforward.streams.connectors.readers import entities, file, lines, rows_of, upload
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.sources import UnreadableItem
from rollforward.tasks.errors import Retry
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import PACE
from tests.rollforward.streams.scenarios.sink_pipeline import VISITS, OutletVisit, VisitsByPath

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)
NOBODY: Any = None


def numbered(line: bytes) -> tuple[str, int] | None:
    return (line.decode(), len(line)) if line else None


def test_a_file_is_read_by_lines_from_any_position(tmp_path: Path) -> None:
    """In parts of any size; empty lines are no records."""
    path = tmp_path / "log"
    path.write_bytes(b"one\r\n\ntwo\nlast")
    read, texts, position = lines(file(path), numbered), [], None
    while True:
        pulled = read(NOBODY, position, 1)
        texts += [value for value, _ in pulled.records]
        position = pulled.position
        if pulled.is_over:
            break
    assert (texts, position) == (["one", "two", "last"], path.stat().st_size)


def test_a_file_that_grows_gives_a_line_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    read = lines(file(path), numbered, grows=True)
    partial = read(NOBODY, None, 10)
    path.write_bytes(b"one\ntwo\n")
    complete = read(NOBODY, partial.position, 10)
    assert [partial.records, complete.records] == [[("one", 3)], [("two", 3)]]
    assert not complete.is_over


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("size", [200_001, 262_145, 1_000_000])
def test_a_line_that_is_too_long_is_a_dead_letter_and_the_next_ones_are_read(
    grows: bool, size: int, tmp_path: Path
) -> None:
    """The source goes on behind the line, whose letter has its beginning; it stopped for ever."""
    path = tmp_path / "log"
    path.write_bytes(b"one\n" + b"x" * size)
    read = lines(file(path), numbered, grows=grows)
    if grows:  # Its end may still come.
        assert read(NOBODY, None, 10).records == [("one", 3)]
    path.write_bytes(b"one\n" + b"x" * size + b"\ntwo\n")
    texts, position = list[Any](), None
    for _ in range(3):
        pulled = read(NOBODY, position, 1)
        texts += pulled.records
        position = pulled.position

    error = f"a line must have at most 200000 bytes, got {size + 1}"
    [first, letter, last] = texts
    assert (first, last) == (("one", 3), ("two", 3))
    assert isinstance(letter, UnreadableItem)
    assert (letter.error, set(letter.item)) == (error, {"x", "\n"})
    assert len(letter.item) <= 1_001
    assert position == path.stat().st_size


def test_a_line_without_end_is_refused() -> None:
    def content(clients: Clients, offset: int) -> Iterable[bytes]:
        while True:
            yield b"x" * 50_000

    with pytest.raises(BadRecordError, match="200000 bytes"):
        lines(content, numbered)(NOBODY, None, 10)


class PulledOrder(ndb.Model):
    created = ndb.DateTimeProperty()


class Seen(Computation):
    """Lists the records of each stream in order of arrival."""

    inputs: ClassVar = {stream: lambda value: "all" for stream in ("log", "orders", "keys", "rows")}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list(record.stream).append(record.value)


def order_record(order: PulledOrder) -> tuple[str, int]:
    return order.key.id(), int(order.created.timestamp())


PULLS = Pipeline(
    "pulls",
    Seen,
    sources=[
        PullSource("log", lines(upload("pulled-log"), numbered)),
        PullSource("orders", entities(PulledOrder, order_record, by=PulledOrder.created)),
        PullSource("keys", entities(PulledOrder, order_record)),
        PullSource("rows", rows_of(VISITS, VisitsByPath, lambda row: ([row.name, row.count], 1))),
    ],
)


@one_emulator
def test_entities_rows_and_uploads_are_read_once(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: two at a time, each delivery twice; what comes later is read when it has settled."""
    monkeypatch.setattr("rollforward.streams.exchange.pulling.MAX_PULLED", 2)
    world = World(services, streams=[PULLS], builds=[ViewMaintenance(VISITS)])
    world.clients.process_state.get_or_create("streams config", lambda: PACE)
    start = naive_utc(world.clock.now())
    with world.context():
        for n, path in enumerate(("/a", "/b", "/a")):
            VISITS.save(world.clients, OutletVisit(id=f"v{n}", path=path, size=1))
        put_upload("pulled-log", b"1\n2\n3\n", start)
        for n, age_s in enumerate((60, 50, 50, 50, 40)):
            PulledOrder(id=f"o{n}", created=start - timedelta(seconds=age_s)).put()
        PulledOrder(id="new", created=start).put()
    world.settle()
    world.doubles = True
    assert pulled(world) == {
        "log": ["1", "2", "3"],
        "orders": ["o0", "o1", "o2", "o3", "o4"],
        "keys": ["new", "o0", "o1", "o2", "o3", "o4"],
        "rows": [["/a", 2], ["/b", 1]],
    }
    world.clock.sleep(31)
    assert pulled(world)["orders"][-2:] == ["o4", "new"]


@one_emulator
def test_a_kind_that_grows_no_more_is_read_to_its_youngest_entity(services: Services) -> None:
    """G1: a load has just ended, and the stream ends with the last entity of it."""
    world = World(services)
    read = entities(PulledOrder, order_record, by=PulledOrder.created, grows=False)
    start = naive_utc(world.clock.now())
    with world.context():
        for n, age_s in enumerate((60, 10, 0)):
            PulledOrder(id=f"young{n}", created=start - timedelta(seconds=age_s)).put()
        first = read(world.clients, None, 2)
        last = read(world.clients, first.position, 2)

    assert [value for value, _ in (*first.records, *last.records)] == ["young0", "young1", "young2"]
    assert (first.is_over, last.is_over) == (False, True)


def test_an_entity_without_a_time_is_no_record(services: Services) -> None:
    """G1: they come first in the index, and a batch of them alone has no time to go on from."""
    world = World(services)
    read = entities(PulledOrder, order_record, by=PulledOrder.created)
    start = naive_utc(world.clock.now())
    with world.context():
        for n in range(3):
            PulledOrder(id=f"untimed{n}").put()
        for n, year in enumerate((1, 1969, 2000)):
            PulledOrder(id=f"timed{n}", created=start.replace(year=year)).put()
        first = read(world.clients, None, 2)
        last = read(world.clients, first.position, 2)

    found = [value for value, _ in (*first.records, *last.records)]
    assert found == ["timed0", "timed1", "timed2"]


def strict_number(item: Any) -> tuple[int, int]:
    """Read a line, the name of an entity, or that of a row, as a number."""
    match item:
        case bytes():
            return int(item), 1
        case ndb.Model():
            return int(item.key.id()), 1
    return int(item.name), 1


STRICT = Pipeline(
    "strict-pulls",
    Seen,
    sources=[
        PullSource("log", lines(upload("strict-log"), strict_number)),
        PullSource("keys", entities(PulledOrder, strict_number, grows=False)),
        PullSource("rows", rows_of(VISITS, VisitsByPath, strict_number)),
    ],
)


@one_emulator
def test_an_item_that_cannot_be_read_is_a_dead_letter_and_the_others_go_on(
    services: Services,
) -> None:
    """G7: no input stops a source; who looks for the item finds its text, and why."""
    world = World(services, streams=[STRICT], builds=[ViewMaintenance(VISITS)])
    world.clients.process_state.get_or_create("streams config", lambda: PACE)
    with world.context():
        put_upload("strict-log", b"1\nnone\xff\n3\n", naive_utc(world.clock.now()))
        orders = [PulledOrder(id=id_) for id_ in ("1", "x", "3")]
        ndb.put_multi(orders)
        for n, path in enumerate(("1", "/", "3")):
            VISITS.save(world.clients, OutletVisit(id=f"s{n}", path=path, size=1))
    world.settle()
    with world.context():
        for stream in ("log", "keys", "rows"):
            STRICT.pull(world.clients, stream)
    world.settle(patience_s=10)
    with world.context():
        state = STRICT.state(world.clients, "seen", "all")
        letters = STRICT.dead_letters(world.clients)
        unread = repr(orders[1].key)
    assert state == {"log": [1, 3], "keys": [1, 3], "rows": [1, 3]}
    found = {letter.stream: (letter.value, letter.error) for letter in letters}
    refused = "no record: ValueError: invalid literal for int() with base 10: "
    assert found == {
        "log": ("none\\xff", refused + "b'none\\xff'"),
        "keys": (unread, refused + "'x'"),
        "rows": ("'/'", refused + "'/'"),
    }


@pytest.mark.parametrize("error", [ServiceUnavailable("down"), ConnectionError(), Retry("later")])
def test_an_outage_costs_no_line(error: Exception, tmp_path: Path) -> None:
    """G7: the source reads the line again."""
    path = tmp_path / "log"
    path.write_bytes(b"1\n2\n")
    down = [error]

    def ask(line: bytes) -> tuple[int, int]:
        if line == b"2" and down:
            raise down.pop()
        return int(line), 1

    read = lines(file(path), ask)
    with pytest.raises(type(error)):
        read(NOBODY, None, 10)
    assert read(NOBODY, None, 10).records == [(1, 1), (2, 1)]


def test_a_line_with_a_time_beyond_all_calendars_is_no_outage(tmp_path: Path) -> None:
    """G7: Python raises OSError for it."""
    path = tmp_path / "log"
    path.write_bytes(b"1e17\n5\n")

    def dated(line: bytes) -> tuple[str, int]:
        return datetime.fromtimestamp(float(line), UTC).isoformat(), 5

    unreadable, record = lines(file(path), dated)(NOBODY, None, 10).records
    assert isinstance(unreadable, UnreadableItem)
    assert (unreadable.item, record) == ("1e17", ("1970-01-01T00:00:05+00:00", 5))


def pulled(world: World) -> dict[str, list[Any]]:
    with world.context():
        for stream in PULLS.sources:
            PULLS.pull(world.clients, stream)
    world.settle(patience_s=10)
    with world.context():
        return {
            stream: sorted(values, key=str) if stream != "orders" else values
            for stream, values in PULLS.state(world.clients, "seen", "all").items()
        }


def test_a_poll_that_no_task_can_wait_for_is_refused() -> None:
    """A task is due within 30 days, so each read of the source failed when it had caught up."""
    reader = lines(lambda clients, offset: [], numbered, grows=True)
    with pytest.raises(TypeError, match="`poll` must be at most 29 days"):
        PullSource("log", reader, poll=timedelta(days=30))
    assert PullSource("log", reader, poll=timedelta(days=29)).poll == timedelta(days=29)
