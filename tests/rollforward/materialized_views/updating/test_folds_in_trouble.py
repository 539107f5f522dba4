"""Folds in trouble: rows that cannot be read, poison, lost races, and more than one fold can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.auth.exceptions import TransportError

from rollforward.local.cloudtasks.protocol import messages
from rollforward.materialized_views.updating import apply
from rollforward.outbox.entities import OutboxTask, outbox_key
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    Numbers,
    counts,
    number,
    one_emulator,
    played,
)

pytestmark = pytest.mark.fast

TABLE = "numbers.1.1"


def stored_again(row: OutboxTask, key: Any, **changed: Any) -> None:
    """Store an outbox row under another key, with other properties."""
    row.key.delete()
    OutboxTask(key=key, **{**row.to_dict(), **changed}).put()


def row_of(name: str) -> OutboxTask:
    """Return the outbox row of an update of a row."""
    (row,) = [row for row in OutboxTask.query().fetch() if row.tag.endswith(f'"{name}"')]
    return row


def fold_now(world: World) -> int | None:
    """Deliver the fold that is due first; return its answer."""
    return world.deliver(world.engine.due()[0].task_name)


def body_of(world: World, due: Any) -> bytes:
    """Return the body of a task that is due."""
    return bytes(world.engine.get_task(due.task_name, messages.FULL).http_request.body)


def fails(monkeypatch: pytest.MonkeyPatch, judge: Callable[[list[str]], Exception | None]) -> list:
    """Let transactions of folds fail as a function of their rows says; return what was tried."""
    tried: list[list[str]] = []
    sound = apply.Applier.apply_many

    def apply_many(self: Any, clients: Any, table: str, rows: Any, unacked: Any) -> None:
        names = [row.row.strip('"') for row in rows]
        tried.append(names)
        error = judge(names)
        if error is not None:
            raise error
        sound(self, clients, table, rows, unacked)

    monkeypatch.setattr(apply.Applier, "apply_many", apply_many)
    return tried


@one_emulator
@pytest.mark.parametrize("key", ["a|1|2|3|4|5|6", "no parts", 7])
def test_a_row_whose_key_cannot_be_read_stops_no_other(services: Services, key: Any) -> None:
    """C1: another version may have written it; readers and gauges see it wait."""
    with played(services, [Numbers]) as (world, views):
        for name in ("a", "b", "c"):
            views.save(world.clients, number(name, 1, row=name))
        stored_again(row_of("b"), outbox_key(key))

        assert views.read(world.clients, Numbers).freshness.waiting == 3
        assert fold_now(world) == 204
        assert counts(world, Numbers, views) == {"a": 1, "c": 1}


@one_emulator
@pytest.mark.parametrize("body", ["", "null", "[]"])
def test_a_row_without_a_body_stops_no_other(services: Services, body: str) -> None:
    """C1."""
    with played(services, [Numbers]) as (world, views):
        for name in ("a", "b", "c"):
            views.save(world.clients, number(name, 1, row=name))
        stored_again(row_of("b"), row_of("b").key, body=body)

        assert fold_now(world) == 204
        assert counts(world, Numbers, views) == {"a": 1, "c": 1}


@one_emulator
@pytest.mark.parametrize("value", [b"null", b"5", b"{", b'{"a": 1}', b"[[]]"])
def test_what_memcached_makes_up_stops_no_fold(services: Services, value: bytes) -> None:
    """C1."""
    with played(services, [Numbers]) as (world, views):
        for name in ("own-tasks", "place", "pace"):
            world.clients.cache.set(f"views:{name}:{TABLE}", value, 60)
        views.save(world.clients, number("a", 1))

        assert fold_now(world) == 204
        assert counts(world, Numbers, views) == {"all": 1}


@one_emulator
@pytest.mark.parametrize(
    "error",
    [
        rpc_errors.PermissionDenied("no"),  # type: ignore[no-untyped-call]
        rpc_errors.FailedPrecondition("no"),  # type: ignore[no-untyped-call]
        TransportError("no metadata"),  # type: ignore[no-untyped-call]
        ConnectionResetError(),
    ],
)
def test_a_fault_of_the_store_is_no_poison(
    services: Services, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """C1: the fold is tried again, and no update gets a task of its own."""
    with played(services, [Numbers]) as (world, views):
        for n in range(4):
            views.save(world.clients, number(f"s{n}", 1, row=n))
        with monkeypatch.context() as patch:
            tried = fails(patch, lambda rows: error)
            assert fold_now(world) in (409, 422, 503)
        own = [due for due in world.engine.due() if b"tick_ms" not in body_of(world, due)]
        world.settle()

        assert (len(tried), own) == (1, [])
        assert counts(world, Numbers, views) == dict.fromkeys(range(4), 1)
