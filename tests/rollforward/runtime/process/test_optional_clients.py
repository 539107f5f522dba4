"""Calls of the patterns without clients: those of the request or task that runs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from google.cloud import ndb

import rollforward as rf
from rollforward import continuations
from rollforward.counters import Counter
from rollforward.fork_join import Accumulator, Batch, fork_join
from rollforward.lanes.declaration import LaneKey
from rollforward.materialized_views import ViewMaintenance
from rollforward.query_cache import cached, get_or_compute
from rollforward.query_cache.query import CachedQuery
from rollforward.runtime import Clients
from rollforward.runtime.process.current import NoClientsError
from tests.infra.world import Services, World

pytestmark = pytest.mark.fast

LIKES = Counter("likes", queue="default")


class LikedPage(ndb.Model):
    visits = ndb.IntegerProperty(default=0)


@dataclass(frozen=True)
class PageVisit:
    visitor: str


@fork_join("page-visits", queue="default", period_s=1)
def count_visits(clients: Clients, batch: Batch, items: Sequence[PageVisit]) -> None:
    row = LikedPage.get_by_id(batch.key) or LikedPage(id=batch.key)
    row.visits += len(items)
    row.put()


@dataclass(frozen=True)
class Forget:
    """It takes nothing."""


@continuations.job("forget-visits", source=lambda args: continuations.EntitySource(LikedPage))
def forget(clients: Clients, args: Forget, pages: Sequence[LikedPage]) -> list[None]:
    ndb.put_multi([LikedPage(key=page.key) for page in pages])
    return [None] * len(pages)


@cached("likes-of", ttl_s=60)
def likes_of(page: str) -> int:
    return LIKES.total(page).value


@cached("pages", ttl_s=60)
def count_pages() -> int:
    return len(LikedPage.query().fetch())


@pytest.fixture
def world(services: Services) -> World:
    return World(services, counters=[LIKES], fork_joins=[count_visits], jobs=[forget])


def test_a_request_calls_the_patterns_without_clients(world: World) -> None:
    """Each call does what it does with them."""
    with world.context():
        assert not LIKES.increment("home", 2, idempotency_key="a").is_duplicate
        assert LIKES.increment(world.clients, "home", idempotency_key="a", delta=2).is_duplicate
        count_visits.insert("home", PageVisit("ada"), idempotency_key="a")
        assert count_visits.insert(
            world.clients, "home", PageVisit("ada"), idempotency_key="a"
        ).is_duplicate
        world.settle()

        assert LIKES.total("home").value == 2
        assert LikedPage.get_by_id("home").visits == 1
        assert continuations.start(forget, Forget(), run_id="spring")
        assert not continuations.start(world.clients, forget, Forget(), run_id="spring")
        world.settle()
        assert LikedPage.get_by_id("home", use_cache=False).visits == 0


def test_a_cached_function_needs_no_clients(world: World) -> None:
    """Neither to be declared nor to be called; each combination of arguments has its own result."""
    with world.context():
        LIKES.increment("home")
        assert [likes_of("home"), likes_of("about"), count_pages()] == [1, 0, 0]
        LIKES.increment("home")
        assert likes_of(world.clients, "home") == likes_of(page="home") == 1
        likes_of.invalidate()
        assert likes_of("home") == 2
        assert get_or_compute("sum", lambda: 7, returns=int, ttl_s=60) == 7
    with pytest.raises(TypeError):
        likes_of.read(world.clients)


def test_outside_of_a_request_the_error_says_what_to_pass() -> None:
    """A script has no clients, and gets the error of a task's."""
    with pytest.raises(NoClientsError, match="pass them first"):
        LIKES.increment("home")


def test_a_clock_is_no_client(world: World) -> None:
    """What is missing is named, not the clients."""
    with world.context(), pytest.raises(TypeError, match="'key'"):
        LIKES.increment()  # type: ignore[call-overload]


class Parcel(ndb.Model):
    """An entity of an app, with a name that clients have, too."""

    process_state = ndb.TextProperty()


class ParcelsByState(rf.View):
    source = Parcel

    @staticmethod
    def contributions(parcel: Parcel) -> Any:
        return {parcel.process_state: {}}


PARCELS = rf.ViewGroup("parcels", ParcelsByState)


def test_an_entity_with_a_property_of_that_name_is_an_entity(services: Services) -> None:
    """What tells clients is their type, whatever an app calls its properties."""
    world = World(services, builds=[ViewMaintenance(PARCELS)])
    with world.context():
        PARCELS.save(Parcel(id="p1", process_state="packed"))
        world.settle()
        found = PARCELS.row(ParcelsByState, "packed")
    assert found is not None
    assert found.count == 1


# The library calls these itself, or a program of an operator does.
OWN_CALLS = {
    "Accumulator": set(),
    "CachedQuery": {"state"},
    "Counter": {"sweep"},
    "ForkJoin": {"sweep"},
    "LaneKey": {
        "add",
        "add_in_transaction",
        "check_registered",
        "replay_in_transaction",
        "unblock_in_transaction",
    },
    "Pipeline": set(),
    "PullQueue": set(),
    "TaskBatch": set(),
    "ViewGroup": {"apply", "fold", "propagate"},
    "ViewMaintenance": {"advance", "sweep"},
}


def parameters_of(method: Any) -> list[str]:
    return list(inspect.signature(method).parameters)


@pytest.mark.parametrize(
    "kind",
    [
        Accumulator,
        CachedQuery,
        Counter,
        LaneKey,
        ViewMaintenance,
        rf.ForkJoin,
        rf.Pipeline,
        rf.PullQueue,
        rf.TaskBatch,
        rf.ViewGroup,
    ],
)
def test_each_call_of_a_pattern_may_leave_its_clients_out(kind: type[Any]) -> None:
    """So nobody has to remember which ones do."""
    methods = {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
        and list(inspect.signature(method).parameters)[1:2] == ["clients"]
    }
    needing = {name for name in methods if not hasattr(methods[name], "has_optional_clients")}

    assert methods
    assert needing == OWN_CALLS[kind.__name__]
