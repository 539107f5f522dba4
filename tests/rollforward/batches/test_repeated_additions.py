"""Additions that are made again with other members: what was not counted never runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from rollforward.batches import ClosedError, TaskBatch, UnknownBatchError, listing
from rollforward.batches.adding import populate
from rollforward.batches.adding.populate import PopulateOptions
from rollforward.batches.declaration import MemberRef
from rollforward.batches.errors import BadWorkError, DifferentWorkError
from rollforward.tasks import Task
from tests.infra.world import World
from tests.rollforward.batches.harness import NOTES, RAN, Note, notes, outcomes, rows_of, told

GROWS = PopulateOptions(is_compared=False)  # As a member adds, whose work may differ each time.


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate, "MAX_PAGE_MEMBERS", 3)
    monkeypatch.setattr(populate, "MAX_PAGE_BYTES", 200)


def die_before_the_commit(world: World, work: Any, options: PopulateOptions) -> None:
    def dies(*args: Any) -> None:
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch, world.context():
        patch.setattr(populate, "_add", dies)
        with pytest.raises(ZeroDivisionError):
            populate.populate(world.clients, NOTES.declaration, "notes:b", work, options)


@pytest.mark.parametrize("lost", ["abcde", ["x" * 100, "y" * 100, "z" * 100]])
def test_members_of_a_call_that_died_never_run(world: World, lost: Any) -> None:
    """F4: however the two calls are cut into pages; and every member of the second one runs."""
    die_before_the_commit(world, notes(*lost), PopulateOptions())
    with world.context():
        assert rows_of("notes:b")["BatchPage"] > 0
        assert NOTES.populate(world.clients, "b", notes("k", "l"), seal=True) == 2
    world.settle()

    assert RAN == {"b/k": 1, "b/l": 1}
    with world.context():
        assert outcomes(NOTES, "b") == ["done", "done"]
        assert told(NOTES, "b")[0]["done"] == 2


@pytest.mark.parametrize("count", [2, 7])
def test_an_operator_is_shown_no_members_of_a_call_that_died(world: World, count: int) -> None:
    """F4: they looked as if they waited for ever, and then as if they had been cancelled."""
    die_before_the_commit(world, notes(*"abcdefgh"), PopulateOptions())
    with world.context():
        NOTES.populate(world.clients, "b", notes(*"klmnopq"[:count]), seal=True)
        waiting = listing.run_details(["notes"], "notes:b").parts
    world.settle()

    with world.context():
        parts = listing.run_details(["notes"], "notes:b").parts
    assert [part.items for part in waiting] == ["." * len(part.items) for part in parts]
    assert "".join(part.items for part in parts) == "d" * count


def test_a_call_that_broke_off_between_its_pages_is_made_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: one page is there already, and those behind it are stored all the same."""
    sound, stored = populate.insert_all, list[Any]()

    def breaks_off(client: Any, rows: Any) -> Any:
        if stored:
            raise ZeroDivisionError
        stored.append(rows)
        return sound(client, rows)

    work = notes(*"abcdefghijk")
    with monkeypatch.context() as patch, world.context():
        patch.setattr(populate, "insert_all", breaks_off)
        with pytest.raises(ZeroDivisionError):
            NOTES.populate(world.clients, "b", work, seal=True)
    with world.context():
        assert NOTES.populate(world.clients, "b", work, seal=True) == 11
    world.settle()

    assert len(stored) == 1
    assert sorted(RAN) == [f"b/{label}" for label in "abcdefghijk"]
    with world.context():
        assert outcomes(NOTES, "b") == ["done"] * 11


def test_members_of_a_call_that_is_refused_never_run(world: World) -> None:
    """F4: a call with other members under a key stores none of them."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a", "b"))
        rows_before = rows_of("notes:b")
        with pytest.raises(DifferentWorkError):
            NOTES.populate(world.clients, "b", notes(*"abcde"))
        assert rows_of("notes:b") == rows_before
        NOTES.seal(world.clients, "b")
    world.settle()

    assert RAN == {"b/a": 1, "b/b": 1}
    with world.context():
        assert outcomes(NOTES, "b") == ["done", "done"]


def test_a_bad_member_is_refused_before_any_is_stored(world: World) -> None:
    bad = [*notes(*"abcdefg"), (NOTES.on_complete, None)]
    with world.context():
        with pytest.raises(BadWorkError):
            NOTES.populate(world.clients, "b", bad)
        assert rows_of("notes").total() == 0


def test_a_member_that_adds_more_the_second_time_adds_nothing(world: World) -> None:
    """F4: its first addition counts."""
    with world.context():
        add = populate.populate
        assert add(world.clients, NOTES.declaration, "notes:b", notes("a"), GROWS) == 1
        assert add(world.clients, NOTES.declaration, "notes:b", notes(*"abcde"), GROWS) == 0
        NOTES.seal(world.clients, "b")
    world.settle()

    assert RAN == {"b/a": 1}
    with world.context():
        assert told(NOTES, "b")[0]["done"] == 1


def test_a_member_that_died_may_add_others(world: World) -> None:
    """F4: what was stored before the commit refuses nothing, and no page of it runs."""
    die_before_the_commit(world, notes(*"abcde"), GROWS)
    with world.context():
        added = populate.populate(
            world.clients, NOTES.declaration, "notes:b", notes(*"vwxyz"), GROWS
        )
        assert added == 5
        NOTES.seal(world.clients, "b")
    world.settle()

    assert {f"b/{label}": 1 for label in "vwxyz"} == RAN
    with world.context():
        assert outcomes(NOTES, "b") == ["done"] * 5


def test_a_call_that_is_refused_stores_nothing(world: World) -> None:
    """F5: however many pages it has: of a batch that is sealed, complete, or removed."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a"), seal=True)
        rows_before = rows_of("notes:b")
        with pytest.raises(ClosedError):
            NOTES.populate(world.clients, "b", notes(*"vwxyz"), idempotency_key="more")
        assert rows_of("notes:b") == rows_before
    world.settle()
    with world.context():
        with pytest.raises(ClosedError):
            NOTES.populate(world.clients, "b", notes(*"vwxyz"), idempotency_key="more")
        assert rows_of("notes:b") == rows_before
    world.clock.sleep(NOTES.declaration.keep.total_seconds() + 1)
    world.sweep()
    world.settle()

    with world.context():
        with pytest.raises(UnknownBatchError):
            NOTES.populate(world.clients, "b", notes(*"abcde"), seal=True)
        assert rows_of("notes:b").total() == 1


def test_a_batch_that_may_not_begin_stores_nothing(world: World) -> None:
    """F5: below a member that has ended, or never was."""
    ended = PopulateOptions(seal=True, parent=MemberRef("notes:b", "notes:b:x:000000", 0, 1))
    with world.context():
        NOTES.populate(world.clients, "b", notes("a"))
        with pytest.raises(ClosedError):
            populate.populate(
                world.clients, NOTES.declaration, "notes:child", notes(*"abcde"), ended
            )
        assert rows_of("notes:child").total() == 0


@dataclass(frozen=True)
class NextNote:
    """What the next version of the code takes."""

    label: str
    colour: str = "black"


def test_a_call_that_the_next_version_repeats_adds_nothing(world: World) -> None:
    """F4: it takes a further argument, in another queue; the batch is sealed all the same."""

    def work(clients: Any, args: Any) -> None: ...

    old_task = Task("/tasks/note", "fan-out", Note, work)
    new_task = Task("/tasks/note", "imports", NextNote, work)
    labels = "abcde"
    with world.context():
        batches = TaskBatch("notes", members=[old_task])
        assert (
            batches.populate(world.clients, "b", [(old_task, Note(each)) for each in labels]) == 5
        )
        batches = TaskBatch("notes", members=[new_task])
        repeated = [(new_task, NextNote(label)) for label in labels]
        assert batches.populate(world.clients, "b", repeated, seal=True) == 0
        progress = batches.progress("b")
        assert (progress.members, progress.is_sealed) == (5, True)
        with pytest.raises(DifferentWorkError):
            batches.populate(world.clients, "b", [(new_task, NextNote("a", "blue")), *repeated[1:]])
