"""Lookups that share a round trip: each caller sees what it would see alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.versions import insert_all
from rollforward.runtime.sharing import shared_lookup
from rollforward.runtime.sharing.shared_lookup import read_together
from tests.infra.world import World

READERS = 6


class LookedUpRow(ndb.Model):
    """A row of one reader."""

    number = ndb.IntegerProperty(indexed=False)


def key(number: int) -> Any:
    return ndb.Key(LookedUpRow, f"{number}")


def test_readers_that_wait_share_a_lookup_that_begins_after_they_asked(world: World) -> None:
    """Each gets its own row with its version, or that there is none; no answer is older."""
    clients, sound = world.clients, shared_lookup.read_versions
    has_begun, may_end = threading.Event(), threading.Event()
    looked_up: list[int] = []

    def read(client: Any, keys: Any) -> Any:
        answer = sound(client, keys)
        looked_up.append(len(keys))
        if len(looked_up) == 1:
            has_begun.set()
            may_end.wait(10)
        return answer

    def ask(number: int) -> Any:
        with clients.context():
            return read_together(clients, key(number))

    with clients.context():
        ndb.delete_multi([key(number) for number in range(READERS)])
    with (
        mock.patch.object(shared_lookup, "read_versions", read),
        mock.patch.object(shared_lookup, "MAX_WAIT_S", 30.0),
        ThreadPoolExecutor(READERS) as threads,
    ):
        first = threads.submit(ask, 0)
        has_begun.wait(10)
        others = [threads.submit(ask, number) for number in range(READERS - 1)]
        with clients.context():
            rows = [LookedUpRow(key=key(number), number=number) for number in range(READERS - 2)]
            versions = insert_all(clients.datastore, rows)
        may_end.set()
        assert first.result(10) is None
        answers = [other.result(10) for other in others]

    expected = [(row, version) for row, version in zip(rows, versions, strict=True)]
    assert answers == [*expected, None]
    assert looked_up[0] == 1
    assert sum(looked_up) == READERS


def test_two_readers_of_one_row_get_an_entity_each(world: World) -> None:
    """What one changes in its own is nothing to the other."""
    clients = world.clients
    with clients.context():
        ndb.put_multi([LookedUpRow(key=key(0), number=0)])
        with ThreadPoolExecutor(2) as threads:

            def ask() -> Any:
                with clients.context():
                    return read_together(clients, key(0))

            answers = [threads.submit(ask) for _ in range(2)]
            [one, _], [other, _] = (answer.result(10) for answer in answers)
    assert one == other
    assert one is not other


def test_an_error_is_the_error_of_all(world: World) -> None:
    """Each has its own."""
    error = rpc_errors.ServiceUnavailable("made by a test")  # type: ignore[no-untyped-call]
    with (
        world.clients.context(),
        mock.patch.object(shared_lookup, "read_versions", side_effect=error),
    ):
        answers = shared_lookup._read(world.clients, [key(0), key(1)])
        with pytest.raises(rpc_errors.ServiceUnavailable):
            read_together(world.clients, key(0))
    assert [type(answer) for answer in answers] == [rpc_errors.ServiceUnavailable] * 2
    assert answers[0] is not answers[1]
