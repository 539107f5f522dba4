"""Moments at which rows of large arguments are read, kept or deleted, and planted bugs."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.partitions import PARTITIONS
from rollforward.tasks.errors import ArgumentsGoneError, EndedError
from rollforward.tasks.stored import arguments, deliveries, near, sweep
from rollforward.tasks.stored.arguments import LIFE
from rollforward.tasks.stored.entities import (
    DistantTask,
    StoredArguments,
    distant_key,
    stored_key,
)
from rollforward.tasks.stored.names import MAX_ARGUMENTS_BYTES, MAX_TASK_BYTES
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug
from tests.infra.world import Services, World
from tests.rollforward.tasks.reminders import one_emulator
from tests.rollforward.tasks.stored.films import Broken, film, frames, rows_here, runs_here

SIZE = MAX_TASK_BYTES + 1
GIVEN_UP: list[str] = []
handled = replace(film, on_give_up=lambda clients, args, reason: GIVEN_UP.append(reason))


@pytest.fixture
def studio(services: Services) -> World:
    """A world in which a second task has large arguments as well."""
    GIVEN_UP.clear()
    world = World(services, tasks=[handled])
    with world.context():
        store(world, "beside")
    return world


def store(studio: World, tag: str = "large") -> bytes:
    """Write the rows of a task with large arguments; return its body."""
    message = handled.message(film.bind(tag, frames(SIZE)), max_bytes=MAX_ARGUMENTS_BYTES)
    return arguments.with_large_arguments(studio.clients, message, most_bytes=1).body


def head_of(body: bytes) -> StoredArguments:
    head = ndb.Key(StoredArguments, arguments.envelope_of(body).stored).get(use_cache=False)
    assert isinstance(head, StoredArguments)
    return head


def before_first(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], None]
) -> None:
    """Let something happen just before the first call of a function."""
    sound, left = getattr(owner, name), [act]

    def call(*args: Any, **options: Any) -> Any:
        if left:
            left.pop()()
        return sound(*args, **options)

    monkeypatch.setattr(owner, name, call)


@one_emulator
def test_a_task_that_is_done_between_two_reads_is_done_and_not_dead(
    studio: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H7: its head is read before its chunks, which another delivery deletes meanwhile."""
    with studio.context():
        body = store(studio)
        finish = lambda: arguments.finish(studio.clients, body)  # noqa: E731
        before_first(monkeypatch, ndb, "get_multi", finish)

        with pytest.raises(EndedError):
            deliveries.begin(studio.clients, body)


@one_emulator
def test_arguments_that_are_kept_meanwhile_are_not_deleted(
    studio: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H7: the sweep has found them expired, and then their task dies."""
    with studio.context():
        body = store(studio)
        other = store(studio, "third")
        studio.clock.sleep(LIFE.total_seconds() + 7_200)
        arguments.keep(studio.clients, other)
        keep = lambda: arguments.keep(studio.clients, body)  # noqa: E731
        before_first(monkeypatch, sweep, "transact", keep)
        own = head_of(body).expires[0]  # Its rows are found, and then they are kept.
        for partition in (own, *PARTITIONS):
            sweep.EXPIRED.delete_page(studio.clients, partition)

        assert head_of(body).expires is head_of(other).expires is None
        assert rows_here() == {"StoredArguments": 2, "ArgumentsChunk": 4}


@one_emulator
def test_the_row_of_a_task_that_is_done_expires_whoever_comes_late(studio: World) -> None:
    """H7: as a delivery of the past that waits, or a replay that is deleted."""
    with studio.context():
        body = store(studio)
        arguments.finish(studio.clients, body)
        expires = head_of(body).expires
        arguments.keep(studio.clients, body)
        studio.clock.sleep(3_600)
        arguments.extend(studio.clients, body, studio.clock.now())
        arguments.release(studio.clients, body)

        assert expires is not None
        assert head_of(body).expires == expires


@one_emulator
def test_arguments_whose_process_dies_while_they_are_written_expire(
    studio: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H7: the head, by which the sweep finds the chunks, is written before them."""
    with studio.context():
        count = rows_here()["StoredArguments"]

        def die(*args: object) -> None:
            raise ConnectionError

        with monkeypatch.context() as patch:
            patch.setattr(ndb, "put_multi", die)
            with pytest.raises(ConnectionError):
                store(studio)

        assert rows_here()["StoredArguments"] == count + 1


@one_emulator
def test_the_arguments_of_a_task_that_its_declaration_gives_up_go(studio: World) -> None:
    """H7: as those of one that is done; the other task keeps its own."""
    with studio.context():
        chunks = rows_here()["ArgumentsChunk"]
        Broken(id="now").put()
        handled.enqueue(studio.clients, film.bind("large", frames(SIZE)))
        studio.deliver_due()

        assert (len(GIVEN_UP), runs_here()) == (1, {})
        assert rows_here()["ArgumentsChunk"] == chunks


def test_rows_that_were_kept_for_a_task_expire_when_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H7: as of one that waited in a lane, or was dead."""
    now_utc = datetime.datetime(2030, 5, 1, tzinfo=datetime.UTC)
    clients: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: now_utc))
    with offline(), Memory() as memory:
        monkeypatch.setattr(ndb, "delete_multi", lambda keys: None)
        memory.put(StoredArguments(key=stored_key("kept"), chunks=2, size=7, expires=None))
        arguments._finish(clients, "kept")
        head = memory.get(stored_key("kept"))

    assert head.done
    assert head.expires is not None


@pytest.mark.parametrize(("late_s", "is_dead"), [(-1, False), (599, False), (600, True)])
def test_a_distant_task_that_is_refused_is_given_up_ten_minutes_after_its_time(
    monkeypatch: pytest.MonkeyPatch, late_s: float, is_dead: bool
) -> None:
    """H3: until then a deployment may create its queue; it is tried again, and starves no other."""
    dead: list[str] = []
    now_utc = datetime.datetime(2030, 5, 1, tzinfo=datetime.UTC)
    letter = lambda clients, **fields: dead.append(fields["reason"])  # noqa: E731
    monkeypatch.setattr(near.dead_tasks, "dead_letter", letter)
    with offline(), Memory() as memory:
        due = (now_utc - datetime.timedelta(seconds=late_s)).replace(tzinfo=None)
        row = DistantTask(key=distant_key("far"), path="/p", queue="q", body="{}", due=due)
        memory.put(row)
        refusal = rpc_errors.InvalidArgument("no such task")  # type: ignore[no-untyped-call]
        near._reject(SimpleNamespace(), row, refusal, now_utc)  # type: ignore[arg-type]
        stored = memory.get(distant_key("far"))

    assert (len(dead), stored is None) == (int(is_dead), is_dead)
    if stored is not None:
        wait = stored.waits_until - now_utc.replace(tzinfo=None)
        assert wait == near.NEAR + near.REFUSED_FOR


BUGS = (
    Bug(
        *(near, "_reject", "_due(row) + REFUSED_FOR", "_due(row)"),
        test_a_distant_task_that_is_refused_is_given_up_ten_minutes_after_its_time,
        {"late_s": 599, "is_dead": False},
    ),
    Bug(
        *(arguments, "_finish", "head.expires or _expires_at(clients, stored_id, None)"),
        *("head.expires", test_rows_that_were_kept_for_a_task_expire_when_it_is_done),
    ),
    Bug(
        *(arguments, "load", "if head is not None and not head.done and None in chunks:"),
        *("if False:", test_a_task_that_is_done_between_two_reads_is_done_and_not_dead),
        errors=(ArgumentsGoneError,),
    ),
    Bug(
        *(sweep, "_delete", " and head.expires is not None and head.expires < expires_before", ""),
        test_arguments_that_are_kept_meanwhile_are_not_deleted,
    ),
    Bug(
        *(arguments, "_expire", " and not head.done", ""),
        test_the_row_of_a_task_that_is_done_expires_whoever_comes_late,
    ),
    Bug(
        *(arguments, "with_large_arguments", "    rows[0].put()", "    pass"),
        test_arguments_whose_process_dies_while_they_are_written_expire,
    ),
    Bug(
        *(deliveries, "give_up", "arguments.finish(clients, body)", "pass"),
        test_the_arguments_of_a_task_that_its_declaration_gives_up_go,
    ),
)


@one_emulator
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(
    studio: World, monkeypatch: pytest.MonkeyPatch, bug: Bug
) -> None:
    """H7: each guard of these rows is for something."""
    bug.check_noticed(monkeypatch, studio=studio)
