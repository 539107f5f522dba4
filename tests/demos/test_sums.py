"""Sums and their books: what was accepted is folded once, under load and under faults."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from demos.sums import load as sum_loads
from demos.sums import sums
from demos.sums.load import Load, LoadGoesOnError
from demos.sums.sums import Count
from models.dead_tasks import open_dead_tasks
from models.demos.sums import LoadWriter, SumAddition, SumTally, sum_key, writer_key
from models.fork_join import WorkReceipt
from models.transactions import transact
from pipelines.fork_join import DifferentItemError, OutcomeUnknownError
from pipelines.fork_join import insert as fork_join_insert
from tests.explorer import Explorer
from tests.faults import CRASH_AFTER, REPLY_LOST
from tests.stack import until
from tests.world import Services, World, in_threads

LOAD, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def world(services: Services) -> World:
    return World(services)


def load_of(world: World, name: str = "s", id_: str = LOAD, **rest: Any) -> Load:
    """Return a load of 3 writers with 5 items each."""
    fields = {"rate": 15, "writers": 3, "seconds": 1, "is_random": True, **rest}
    return Load(id_, name, started_ms=round(world.clock.time_s * 1000), **fields)


def start(world: World, load: Load) -> bool:
    with world.clients.context():
        return sum_loads.start(world.clients, load)


def books(world: World, name: str = "s") -> tuple[Count, Count, int]:
    """Return what was accepted, what is folded, and how much waits."""
    with world.context():
        sums.tally_buffer(world.clients).write()
        tallied = sums.tallied(name)
        load = sum_loads.status(world.clients, name)
        standing = sums.status(name)
        accepted = load.accepted + load.before + tallied.accepted(standing)
    return accepted, standing.folded, standing.waiting


# Which sums there are


def test_a_sum_is_made_once_and_there_are_not_too_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same name is the same sum; one more than there may be is refused."""
    monkeypatch.setattr(sums, "MAX_SUMS", 2)
    with world.context():
        assert [sums.create("b"), sums.create("a"), sums.create("b")] == [True, True, False]
        with pytest.raises(sums.TooManySumsError):
            sums.create("c")
        assert sums.names() == ["a", "b"]


def test_whether_a_sum_exists_is_asked_once(world: World) -> None:
    """A process remembers the names it has seen: an insert costs no read for it."""
    with world.clients.context():
        assert not sums.exists(world.clients, "a")
        sums.create("a")
        assert sums.exists(world.clients, "a")
        before = world.clients.meter.cost()
        assert all(sums.exists(world.clients, "a") for _ in range(10))

        assert (world.clients.meter.cost() - before).round_trips == 0


# Additions


def test_a_form_counts_once_and_so_does_its_note(world: World) -> None:
    """Sent twice, or by five at once: one item, one note, and the books balance."""

    def send(amount: int = 7) -> bool:
        with world.clients.context():
            return sums.add_once(world.clients, "s", LOAD, amount)

    answers: list[bool] = []
    in_threads(*[lambda: answers.append(send()) for _ in range(5)])
    assert not send(8)
    world.settle()

    assert any(answers)
    assert books(world) == (Count(1, 7), Count(1, 7), 0)


def test_a_form_whose_commit_lost_its_reply_counts_once(world: World) -> None:
    """The second try finds its own row, and says that it was added."""
    with world.clients.context(), world.plan.watched():
        sums.add_once(world.clients, "other", LOAD, 1)
        calls = list(world.plan.calls)
        # The same calls once more, and now the commit's reply is lost.
        world.plan.calls.clear()
        world.plan.kind, world.plan.at = REPLY_LOST, calls.index("Commit")
        assert sums.add_once(world.clients, "s", LOAD, 7)
    assert "Commit" in world.plan.fired
    world.heal(lambda: sums.status("s").waiting == 0)

    assert books(world) == (Count(1, 7), Count(1, 7), 0)


def test_what_the_api_accepts_is_noted_once(world: World) -> None:
    """A repeat is no second item; what a process tallied is written when the books are read."""
    with world.clients.context():
        for key, amount in [("k", 5), ("k", 5), (None, -2), (None, -2)]:
            sums.add(world.clients, "s", amount, idempotency_key=key)
        with pytest.raises(DifferentItemError):
            sums.add(world.clients, "s", 6, idempotency_key="k")
    accepted, _, waiting = books(world)
    assert (accepted, waiting) == (Count(3, 1), 3)
    world.settle()

    assert books(world) == (Count(3, 1), Count(3, 1), 0)


def test_notes_are_written_in_few_writes_and_before_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many inserts within a second: no note of theirs is a write; SIGTERM loses none."""
    monkeypatch.setattr(sums, "NOTED_EVERY_S", 60)
    with world.clients.context():
        for _ in range(20):
            sums.add(world.clients, "s", 1, idempotency_key=None)
    with world.context():
        assert SumTally.query().fetch() == []

    world.clients.process_state.shutdown()

    with world.context():
        assert sum(tally.items for tally in SumTally.query()) == 20


def test_notes_are_written_by_themselves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a second, by a thread that ends then; what Datastore does not take, later."""
    monkeypatch.setattr(sums, "NOTED_EVERY_S", 0.05)
    others = set(threading.enumerate())
    written, write = threading.Event(), sums._write
    failures = [rpc_errors.ServiceUnavailable("away"), ValueError("odd")]

    def flaky(note: Any) -> None:
        if failures:
            raise failures.pop()
        write(note)
        written.set()

    monkeypatch.setattr(sums, "_write", flaky)
    with world.clients.context():
        sums.add(world.clients, "s", 4, idempotency_key=None)

    assert written.wait(20)
    until(
        lambda: not any(t.name == "sums-notes" for t in {*threading.enumerate()} - others), 20, 0.02
    )
    with world.context():
        assert sums.tallied("s").api == Count(1, 4)


def test_a_note_that_lost_its_reply_is_counted_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot keeps the ids of its last notes."""
    monkeypatch.setattr(sums, "NOTED_EVERY_S", 60)
    with world.clients.context():
        sums.add(world.clients, "s", 4, idempotency_key=None)
    world.plan.kind, world.plan.at = REPLY_LOST, 2
    with world.plan.watched(), world.clients.context():
        sums.tally_buffer(world.clients).write()
    assert "Commit" in world.plan.fired

    assert books(world)[0] == Count(1, 4)


def test_the_books_settle_after_a_kill(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its notes were of is in the items: at rest both sides are equal, to the amount."""
    monkeypatch.setattr(sums, "NOTED_EVERY_S", 3600)
    with world.clients.context():
        for amount in (5, -2):
            sums.add(world.clients, "s", amount, idempotency_key=None)
        sums.add_once(world.clients, "s", LOAD, 100)
    world.clients.process_state.clear()  # Killed: no last act.
    with world.clients.context():
        sums.add(world.clients, "s", 7, idempotency_key=None)
    world.settle()

    assert books(world) == (Count(4, 110), Count(4, 110), 0)


def test_the_books_know_what_was_found_out_by_a_repeat(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 503 whose commit took effect, then the client's retry, which is no second item."""
    sound = fork_join_insert.insert_all

    def lost(client: Any, entities: Any) -> None:
        sound(client, entities)
        raise rpc_errors.DeadlineExceeded("made by a test")

    def away(keys: Any) -> Any:
        raise rpc_errors.DeadlineExceeded("made by a test")

    with world.clients.context():
        with monkeypatch.context() as patch:
            patch.setattr(fork_join_insert, "insert_all", lost)
            patch.setattr(fork_join_insert.ndb, "get_multi", away)
            with pytest.raises(OutcomeUnknownError):
                sums.add(world.clients, "s", 5, idempotency_key="k")
        assert sums.add(world.clients, "s", 5, idempotency_key="k").is_duplicate
    world.settle()

    assert books(world) == (Count(1, 5), Count(1, 5), 0)


def test_what_was_noted_and_is_not_found_is_missing(world: World) -> None:
    """The books would tell of an item that was lost, also beside one that was not tallied."""
    with world.clients.context():
        for amount in (5, 6):
            sums.add(world.clients, "s", amount, idempotency_key=None)
    world.settle()
    with world.context():
        row = sum_key("s").get()
        row.items, row.total, row.api_items, row.api_amount = 1, 5, 1, 5
        row.put()

    assert books(world) == (Count(2, 11), Count(1, 5), 0)


def test_a_note_that_comes_again_after_those_of_many_is_counted_once(world: World) -> None:
    """Its reply was lost; meanwhile forty other processes have written to its slot."""
    note = sums._TallyDelta("s", 0, "mine", 1, items=3, amount=9)
    with world.clients.context():
        transact(lambda: sums._write(note))
        for process in range(40):
            other = sums._TallyDelta("s", 0, f"p{process}", 1, items=1, amount=1)
            transact(lambda other=other: sums._write(other))  # type: ignore[misc]
        transact(lambda: sums._write(note))
        transact(lambda: sums._write(dataclasses.replace(note, number=2)))

        assert sums.tallied("s").api == Count(46, 58)


def test_what_is_added_by_a_form_is_no_addition_of_the_api(world: World) -> None:
    """Were a form's item folded twice, the books would say so."""
    with world.clients.context():
        sums.add_once(world.clients, "s", LOAD, 5)
    world.settle()
    with world.context():
        row = sum_key("s").get()
        row.items, row.total = 2, 10
        row.put()

    assert books(world) == (Count(1, 5), Count(2, 10), 0)


def test_forms_are_forgotten_after_two_days(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Growth is bounded: those that come delete those before; until then each counts once."""
    monkeypatch.setattr(sums, "PARTITIONS", "ab")
    monkeypatch.setattr(sums, "expiry", lambda spread, at: f"{spread[0]}{at:%Y%m%dT%H}")
    forms = [f"{i % 2 + 10:x}{i:031x}" for i in range(30)]
    with world.clients.context():
        for form in forms:
            assert sums.add_once(world.clients, "s", form, 1)
    world.clock.sleep(47 * 3600)
    with world.clients.context():
        assert not any(sums.add_once(world.clients, "s", form, 1) for form in forms)
    world.clock.sleep(2 * 3600)
    with world.clients.context():
        for i in range(12):
            sums.add_once(world.clients, "s", f"a{i:030x}f", 1)
    with world.context():
        left = [key.id() for key in SumAddition.query().fetch(keys_only=True)]

    assert len(left) == 12


def test_an_item_that_cannot_be_folded_is_parked_and_stays_in_the_books(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accepted = folded + waiting + parked, whatever becomes of an item."""
    join: Callable[..., Any] = sums.add_up.join

    def fails(clients: Any, batch: Any, items: Any) -> Any:
        if any(item.amount == 13 for item in items):
            raise ValueError("unlucky")
        return join(clients, batch, items)

    monkeypatch.setattr(sums.add_up, "join", fails)
    with world.clients.context():
        for amount in (1, 13, 2):
            sums.add(world.clients, "s", amount, idempotency_key=None)
    world.settle()

    with world.context():
        standing = sums.status("s")
    assert (standing.folded, standing.waiting) == (Count(2, 3), 0)
    assert standing.parked == Count(1, 13)
    assert standing.by_api == Count(3, 16)
    assert books(world)[0] == Count(3, 16)


def test_the_books_hold_at_every_moment_of_a_parking_and_a_replay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accepted = folded + waiting + parked, after each delivery."""
    join: Callable[..., Any] = sums.add_up.join

    def fails(clients: Any, batch: Any, items: Any) -> Any:
        if any(item.amount == 13 for item in items):
            raise ValueError("unlucky")
        return join(clients, batch, items)

    def deliver_each() -> None:
        for _ in range(60):
            for due in world.engine.due():
                world.deliver(due.task_name)
                accepted, folded, waiting = books(world)
                with world.context():
                    parked = sums.status("s").parked.items
                assert folded.items + waiting + parked == 2 == accepted.items
            wake_at = world.engine.wake_at()
            if wake_at is None:
                return
            world.clock.sleep(max(0.0, wake_at - world.clock.time_s) + 0.001)

    with monkeypatch.context() as patch:
        patch.setattr(sums.add_up, "join", fails)
        with world.clients.context():
            for amount in (1, 13):
                sums.add(world.clients, "s", amount, idempotency_key=None)
        deliver_each()
    with world.context():
        (dead,) = open_dead_tasks().fetch()
        replay = world.app.extensions["wiring"].registry.tasks["/tasks/dead/replay"]
        replay.enqueue(world.clients, replay.args(dead.key.id()))
    deliver_each()

    assert books(world) == (Count(2, 14), Count(2, 14), 0)


# Loads


def test_a_load_is_folded_to_the_item(world: World) -> None:
    """Three writers with five items each, at their time; many items, few batches."""
    load = load_of(world)
    assert start(world, load)
    world.settle()

    assert load.expected.items == 15
    assert books(world) == (load.expected, load.expected, 0)
    with world.context():
        standing = sum_loads.status(world.clients, "s")
        assert standing.is_over
        assert standing.repeats == 0
        assert standing.p95_ms is not None
        assert sum_key("s").get().batches < 5
        rows = [writer_key("s", LOAD, writer).get() for writer in range(3)]
    assert [row.accepted for row in rows] == [5, 5, 5]
    assert all(len(row.turns) > 1 for row in rows)


@pytest.mark.parametrize("seed", range(2))
def test_a_load_counts_once_with_every_task_delivered_twice(world: World, seed: int) -> None:
    """One after the other, in a shuffled order."""
    world.doubles, world.order = True, random.Random(seed)
    load = load_of(world)
    start(world, load)
    world.settle()

    assert books(world) == (load.expected, load.expected, 0)


def test_a_load_counts_once_with_all_deliveries_side_by_side(world: World) -> None:
    """All that is due at once, each of it twice, on threads."""
    world.overlaps = True
    load = load_of(world)
    start(world, load)
    world.heal(lambda: sum_loads.status(world.clients, "s").is_over, rounds=3)
    world.heal(lambda: sums.status("s").waiting == 0)

    assert books(world) == (load.expected, load.expected, 0)


class LoadScenario:
    """Two writers with two items each."""

    def __init__(self, world: World) -> None:
        self.world = world

    def begin(self, tag: str) -> None:
        load = load_of(self.world, tag, rate=4, writers=2)
        sum_loads.start(self.world.clients, load)

    def is_done(self, tag: str) -> bool:
        is_over = sum_loads.status(self.world.clients, tag).is_over
        return is_over and sums.status(tag).waiting == 0

    def check(self, tag: str, fault: str) -> None:
        load = sum_loads.status(self.world.clients, tag)
        assert load.load is not None
        assert load.accepted == load.load.expected, fault
        assert sums.status(tag).folded == load.load.expected, fault


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [CRASH_AFTER, REPLY_LOST])
@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_load_counts_once_with_a_fault_at_any_call(world: World, kind: str) -> None:
    """A writer that is killed, or not answered, inserts again, and it counts once."""
    assert Explorer(world, LoadScenario(world)).explore([kind])


def test_a_load_counts_once_when_memcached_is_flushed_again_and_again(world: World) -> None:
    """Smaller batches, the same sum."""
    load = load_of(world)
    start(world, load)
    for _ in range(40):
        world.flush()
        world.deliver_due()
        wake_at = world.engine.wake_at()
        if wake_at is None:
            break
        world.clock.sleep(max(0.0, wake_at - world.clock.time_s) + 0.001)
    world.heal(lambda: sums.status("s").waiting == 0)

    assert books(world) == (load.expected, load.expected, 0)


def test_a_sum_is_under_one_load_at_a_time(world: World) -> None:
    """The same form starts nothing more, another is refused until the first is over."""
    first = load_of(world)
    assert start(world, first)
    assert not start(world, first)
    with pytest.raises(LoadGoesOnError):
        start(world, load_of(world, id_=OTHER))
    assert start(world, load_of(world, "another", id_=OTHER))
    world.settle()

    second = load_of(world, id_="c" * 32)
    assert start(world, second)
    assert not start(world, first)
    world.settle()

    both = first.expected + second.expected
    assert books(world) == (both, both, 0)


def test_a_writer_that_comes_after_its_load_was_given_up_is_still_in_the_books(
    world: World,
) -> None:
    """Its task was held up for minutes; meanwhile another load has begun."""
    first = load_of(world)
    start(world, first)
    for _ in range(2):  # The load begins, and one writer has inserted what was due.
        world.deliver(world.engine.due()[0].task_name)
    world.clock.sleep(first.seconds + sum_loads.GIVEN_UP_AFTER_S + 1)
    turn = sum_loads.Turn(first, 1)
    late = sum_loads._Work(accepted=2)

    second = load_of(world, id_=OTHER)
    assert start(world, second)
    with world.clients.context():
        for number in range(2):
            amount = first.amounts(1, 2)[number]
            sums.add_up.insert(
                world.clients, "s", sums.Add(amount), idempotency_key=f"{LOAD}.1.{number}"
            )
        sum_loads.transact(lambda: sum_loads._note(turn, late, [0, 1, 2], 0))
    world.settle()

    accepted, folded, waiting = books(world)
    assert (accepted, waiting) == (folded, 0)
    assert folded.items >= second.items + 2


def test_a_turn_that_comes_after_a_day_adds_nothing(world: World) -> None:
    """Receipts of its items may be forgotten by then, and they would count twice."""
    load = load_of(world)
    start(world, load)
    world.settle()
    world.clock.sleep(49 * 3600)
    with world.context():
        for key in WorkReceipt.query().fetch(keys_only=True):
            key.delete()
        ndb.delete_multi(writer_key("s", LOAD, writer) for writer in range(3))
    with world.clients.context():
        sum_loads.write.work(world.clients, sum_loads.Turn(load, 1))
    world.settle()

    assert books(world)[1] == load.expected


def test_rows_of_loads_are_deleted_after_two_days(world: World) -> None:
    """Growth is bounded: by the loads that come after; what they were told stays in the books."""
    loads = []
    for name in "abc":
        loads.append(load_of(world, id_=name * 32))
        start(world, loads[-1])
        world.settle()
        world.clock.sleep(30 * 3600)
    with world.context():
        rows = [key.id() for key in LoadWriter.query().fetch(keys_only=True)]
    assert {row.split("|")[1] for row in rows} == {"b" * 32, "c" * 32}
    start(world, load_of(world, id_="d" * 32))
    world.settle()

    with world.context():
        rows = [key.id() for key in LoadWriter.query().fetch(keys_only=True)]
    assert {row.split("|")[1] for row in rows} == {"c" * 32, "d" * 32}
    accepted, folded, waiting = books(world)
    assert (accepted, waiting, folded.items) == (folded, 0, 4 * loads[0].items)


def test_no_turn_is_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is far behind stops after so many items, and goes on in its next turn."""
    monkeypatch.setattr(sum_loads, "MAX_ITEMS_A_TURN", 2)
    load = load_of(world, writers=1)
    start(world, load)
    world.clock.sleep(2)
    world.settle()

    with world.context():
        (row,) = LoadWriter.query(LoadWriter.key >= ndb.Key(LoadWriter, "s|")).fetch()
    assert row.accepted == 15
    assert max(items for _, _, items in row.turns) == 2
