"""Lookups that share a round trip: each caller sees what it would see alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.versions import insert_all
from rollforward.runtime.sharing import shared_lookup
from rollforward.runtime.sharing.shared_lookup import read_together
from tests.infra.stack import until
from tests.infra.world import World

READERS = 6


class LookedUpRow(ndb.Model):
    """A row of one reader."""

    number = ndb.IntegerProperty(indexed=False)


class GoneRow(ndb.Model):
    """A row of a kind that the app no longer has."""


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


def test_a_row_that_cannot_be_read_is_the_trouble_of_its_reader_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who share its lookup get theirs; a row of a kind without a class is one."""
    with world.clients.context():
        ndb.put_multi([GoneRow(id="0"), *(LookedUpRow(key=key(n), number=n) for n in range(3))])
        bad = ndb.Key(GoneRow, "0")
    monkeypatch.delitem(ndb.Model._kind_map, "GoneRow")

    with world.clients.context():
        answers = ask_together(world, [key(0), bad, key(1), key(2)])

    assert isinstance(answers.pop(1), ndb.KindError)
    assert [row.number for row, _ in answers] == [0, 1, 2]


def test_a_lookup_that_is_refused_as_a_whole_is_made_for_each(world: World) -> None:
    """As when all rows together are too large for the time of a call: none of them is alone."""
    sound = shared_lookup.read_versions

    def read(client: Any, keys: Any) -> Any:
        if len(keys) > 1:
            raise rpc_errors.DeadlineExceeded("made by a test")  # type: ignore[no-untyped-call]
        return sound(client, keys)

    with world.clients.context():
        ndb.put_multi([LookedUpRow(key=key(n), number=n) for n in range(3)])
    with world.clients.context(), mock.patch.object(shared_lookup, "read_versions", read):
        answers = ask_together(world, [key(n) for n in range(3)])

    assert [row.number for row, _ in answers] == [0, 1, 2]


def test_a_service_that_is_away_is_asked_once_for_all(world: World) -> None:
    """A lookup for each would be up to a hundred times its load."""
    error = rpc_errors.ServiceUnavailable("made by a test")  # type: ignore[no-untyped-call]
    sound, shared = shared_lookup.read_versions, []

    def read(client: Any, keys: Any) -> Any:
        if not shared and len(keys) == 1:
            return sound(client, keys)  # The lookup that the others wait for.
        shared.append(len(keys))
        raise error

    with world.clients.context(), mock.patch.object(shared_lookup, "read_versions", read):
        answers = ask_together(world, [key(n) for n in range(3)])

    assert answers == [error] * 3
    assert shared == [3]


def test_a_thread_that_is_ended_over_a_lookup_takes_none_of_its_followers_with_it(
    world: World,
) -> None:
    """They look up their own keys; the thread itself ends."""
    sound = shared_lookup.read_versions

    def read(client: Any, keys: Any) -> Any:
        if len(keys) > 1:
            raise KeyboardInterrupt
        return sound(client, keys)

    with world.clients.context():
        ndb.put_multi([LookedUpRow(key=key(n), number=n) for n in range(3)])
    with world.clients.context(), mock.patch.object(shared_lookup, "read_versions", read):
        leader, *followers = ask_together(world, [key(n) for n in range(3)])

    assert isinstance(leader, KeyboardInterrupt)
    assert [row.number for row, _ in followers] == [1, 2]


def test_the_error_of_a_lookup_of_one_key_is_its_readers(world: World) -> None:
    """It is not made again: the service is asked once."""
    error = rpc_errors.ServiceUnavailable("made by a test")  # type: ignore[no-untyped-call]
    with (
        world.clients.context(),
        mock.patch.object(shared_lookup, "read_versions", side_effect=error) as asked,
        pytest.raises(rpc_errors.ServiceUnavailable),
    ):
        read_together(world.clients, key(0))
    assert asked.call_count == 1


def ask_together(world: World, keys: Sequence[Any]) -> list[Any]:
    """Look up some keys while another lookup is in progress, so that they share the next one.

    Returns:
        The answer to each, or its error.
    """
    clients, has_begun, may_end = world.clients, threading.Event(), threading.Event()

    def hold(client: Any, held: Any) -> Any:
        has_begun.set()
        may_end.wait(10)
        return [None]

    def ask(asked: Any) -> Any:
        with clients.context():
            try:
                return read_together(clients, asked)
            except BaseException as error:
                return error

    groups = shared_lookup._groups(clients)
    with (
        mock.patch.object(groups, "_max_wait_s", 30.0),
        ThreadPoolExecutor(len(keys) + 1) as threads,
    ):
        with mock.patch.object(shared_lookup, "read_versions", hold):
            first = threads.submit(ask, key(99))
            has_begun.wait(10)
        asked = []
        for number, one in enumerate(keys, 1):
            asked.append(threads.submit(ask, one))
            until(lambda number=number: len(groups._waiting) == number, 10, 0.001)  # type: ignore[misc]
        may_end.set()
        assert first.result(10) is None
        return [answer.result(10) for answer in asked]
