"""Threads of two processes that write one row, on the emulators."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.runtime.cache import Cache, open_cache
from rollforward.runtime.channel.hot_rows import HotRows
from rollforward.runtime.clients import open_datastore
from rollforward.runtime.clock import SystemClock
from rollforward.runtime.process.processes import LockedFiles, NoProcesses, Processes
from rollforward.testing.opening import new_namespace
from rollforward.testing.services import PROJECT
from tests.infra.world import Services


class HotVisits(ndb.Model):
    visits = ndb.IntegerProperty(indexed=False, default=0)


class HotEntry(ndb.Model):
    cents = ndb.IntegerProperty(indexed=False)


@dataclass
class Worker:
    """A process of an app, but for its memory."""

    client: ndb.Client
    refused: list[Exception] = field(default_factory=list)

    def count(self, name: str, times: int) -> None:
        self._repeat(lambda: self._increment(name), times)

    def draw(self, account: str, times: int) -> None:
        self._repeat(lambda: self._draw(account), times)

    def _repeat(self, body: Callable[[], None], times: int) -> None:
        for _ in range(times):
            with self.client.context(cache_policy=False, global_cache=None, legacy_data=False):
                try:
                    transact(body)
                except Exception as error:
                    self.refused.append(error)

    def _increment(self, name: str) -> None:
        visits = HotVisits.get_by_id(name) or HotVisits(id=name)
        visits.visits += 1
        visits.put()

    def _draw(self, account: str) -> None:
        above = ndb.Key("HotAccount", account)
        if sum(entry.cents for entry in HotEntry.query(ancestor=above)) > -10:
            HotEntry(parent=above, cents=-1).put()


@pytest.fixture(params=["memcached", "instance"])
def workers(
    services: Services, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[list[Worker]]:
    """Two processes of an app, with memcached, or without it on one instance."""
    host = services.memcached if request.param == "memcached" else None
    instance = LockedFiles(str(tmp_path)) if host is None else NoProcesses()
    namespace = new_namespace()
    with contextlib.closing(open_cache(host, scope=namespace, timeout_s=10)) as cache:
        yield [worker_of(services, namespace, number, cache, instance) for number in range(2)]


def worker_of(
    services: Services, namespace: str, number: int, cache: Cache, instance: Processes
) -> Worker:
    rows, ids = HotRows(by_kind=True), itertools.count()
    client = open_datastore(
        PROJECT,
        emulator=services.datastore,
        namespace=namespace,
        database=services.database,
        interceptors=[rows],
    )
    clients: Any = SimpleNamespace(
        cache=cache,
        clock=SystemClock(),
        processes=instance,
        new_id=lambda: f"{number}-{next(ids)}",
    )
    rows.start(clients)
    return Worker(client)


def test_many_that_write_one_row_all_get_on(workers: list[Worker]) -> None:
    """M10: without turns a store that locks commits one of them in a second, and refuses the rest.

    Each call has four attempts, as always, and none is refused.
    """
    threads = [
        threading.Thread(target=worker.count, args=("home", 6))
        for worker in workers
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [error for worker in workers for error in worker.refused] == []
    with workers[0].client.context():
        assert HotVisits.get_by_id("home").visits == 60


def test_many_that_query_what_they_write_all_get_on(workers: list[Worker]) -> None:
    """M7: an account's balance is the sum of its entries. Two accounts, and none is overdrawn."""
    threads = [
        threading.Thread(target=worker.draw, args=(account, 4))
        for worker in workers
        for account in ("ada", "bob")
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [error for worker in workers for error in worker.refused] == []
    with workers[0].client.context():
        for account in ("ada", "bob"):
            entries = HotEntry.query(ancestor=ndb.Key("HotAccount", account)).fetch()
            assert sum(entry.cents for entry in entries) == -10
