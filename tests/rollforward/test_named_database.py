"""The pipelines in a database that has a name.

Whatever takes `services` runs in one by `TEST_DATABASE=named make test`. Here it does in every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs

import grpc
import pytest
from google.cloud import ndb

from rollforward import continuations
from rollforward.datastore.transactions import transact
from rollforward.datastore.versions import insert_all
from rollforward.runtime import open_datastore
from rollforward.testing.services import PROJECT
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import APPLY, Walk, ledger, put_items
from tests.rollforward.fork_join.tally_queue import QUEUES, TALLIES, Mark, tallied
from tests.rollforward.materialized_views.student_views import BUILDS, SCHOOL, Pupil, differences
from tests.rollforward.outbox.order_tasks import STEPS, TASKS, place, ran, waiting

DATABASE = "named"


class Thing(ndb.Model):
    """Something to insert."""


@dataclass
class Spy(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Notes of each call which database its request and its routing header name."""

    seen: list[tuple[str, str, str]] = field(default_factory=list)

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        header = dict(details.metadata or ()).get("x-goog-request-params", "")
        routed = parse_qs(header).get("database_id", [""])[0]
        method = details.method.rpartition("/")[2]
        self.seen.append((method, request.database_id, routed))
        return continuation(details, request)


@pytest.fixture
def services(services: Services) -> Services:
    return replace(services, database=DATABASE)


@pytest.fixture
def world(services: Services) -> World:
    return World(services, [APPLY], TASKS, [BUILDS], QUEUES)


@pytest.fixture
def spied(services: Services) -> Iterator[tuple[ndb.Client, Spy]]:
    spy = Spy()
    client = open_datastore(
        PROJECT, emulator=services.datastore, database=DATABASE, interceptors=[spy]
    )
    with client.context(cache_policy=False):
        yield client, spy


def put_in_transaction(client: ndb.Client, things: Sequence[Thing]) -> None:
    transact(lambda: ndb.put_multi(things))


def put(client: ndb.Client, things: Sequence[Thing]) -> None:
    ndb.put_multi(things)


@pytest.mark.parametrize("write", [insert_all, put_in_transaction, put])
def test_each_call_names_its_database_and_is_routed_there(
    spied: tuple[ndb.Client, Spy], write: Callable[[ndb.Client, Sequence[Any]], None]
) -> None:
    """The service refuses a call whose routing header does not fit its request."""
    client, spy = spied

    write(client, [Thing(id=f"{write.__name__}/{id(spy)}")])

    assert {call for call, _, _ in spy.seen} >= {"Commit"}
    assert {(request, header) for _, request, header in spy.seen} == {(DATABASE, DATABASE)}


def test_what_is_inserted_stands_where_it_is_read(world: World) -> None:
    """An insert without reads goes into the database that ndb reads, and no other."""
    with world.context():
        insert_all(world.clients.datastore, [Thing(id="a")])
        there = Thing.get_by_id("a")
        assert there is not None
        assert there.key.database() == DATABASE


def test_the_outbox_works(world: World) -> None:
    """B1: each task runs once, and its row goes."""
    with world.context():
        transact(lambda: place(world.clients, "o"))
    world.settle()

    assert ran(world, "o") == Counter(STEPS)
    assert waiting(world) == []


def test_fork_join_queues_work(world: World) -> None:
    """D1: each item is folded once."""
    with world.context():
        TALLIES.insert_each(world.clients, [("k", Mark(str(i))) for i in range(5)])
    world.settle()

    with world.context():
        assert tallied("k") == Counter(str(i) for i in range(5))


def test_continuations_work(world: World) -> None:
    """A1: each item is applied once."""
    names = put_items(world, 5)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
    world.settle()

    assert ledger(world, "run") == Counter(names)


def test_views_work(world: World) -> None:
    """C1: a view is what a recomputation gives, also after a rebuild."""
    with world.context():
        for i in range(4):
            SCHOOL.save(world.clients, Pupil(id=f"p{i}", grade=i % 2))
    world.settle()
    with world.context():
        BUILDS.rebuild(world.clients, next(iter(SCHOOL.views.values())))
    world.settle()

    with world.context():
        assert differences() == []
