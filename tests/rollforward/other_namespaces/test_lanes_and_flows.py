"""Lanes, steps of flows, pushes, lists and topics in a tenant's context: they work there."""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.flows import Steps, flow
from rollforward.flows.rows.entities import FlowValue
from rollforward.paging import Listing, PageTokens, QueryRange
from rollforward.runtime import topics
from rollforward.streams import PushedRecord
from tests.infra.world import Services, World
from tests.rollforward.flows.shop import FlowStock, reserve
from tests.rollforward.lanes import office
from tests.rollforward.lanes.office import BLOCKING, DESK, IN_ORDER, PACED, send, write
from tests.rollforward.other_namespaces.tenants import tenant
from tests.rollforward.streams.harness import WEBLOG, stream_world, windows
from tests.rollforward.tasks.reminders import one_emulator

LARGE = "x" * 900_000


class TenantBook(ndb.Model):
    """A book of a tenant."""

    place = ndb.StringProperty()


def office_of(services: Services) -> World:
    office.DESK.__init__()  # type: ignore[misc]
    return World(services, lanes=office.LANES, tasks=[office.write, office.PARCEL])


@one_emulator
def test_tasks_of_a_tenant_s_context_wait_in_the_lanes_of_the_app(services: Services) -> None:
    """K1: each runs, in the order of a key, behind those that others have added."""
    world = office_of(services)
    clients = world.clients

    def body() -> None:
        for text in ("3", "4"):
            outbox.enqueue(clients, write, write.bind("ada", text), lane=IN_ORDER("ada"))

    with world.context():
        send(clients, IN_ORDER, "ada", "0")
        with tenant("acme"):
            send(clients, IN_ORDER, "ada", "1")
            send(clients, PACED, "bob", "x", "y")
        send(clients, IN_ORDER, "ada", "2")
        with tenant("bolt"):
            transact(body)
            assert IN_ORDER("ada").state().waiting == IN_ORDER("ada").waiting(9) == 5
            assert [key.key for key in IN_ORDER.keys().keys] == ["ada"]
    world.settle()
    assert DESK.of("ada") == ["0", "1", "2", "3", "4"]
    assert sorted(DESK.of("bob")) == ["x", "y"]


@one_emulator
def test_a_tenant_s_context_pauses_resumes_and_drains_a_key(services: Services) -> None:
    """K5: what it changes is what deliveries read."""
    world = office_of(services)
    key = BLOCKING("ada")
    with world.context(), tenant("acme"):
        key.pause(world.clients)
        send(world.clients, BLOCKING, "ada", "0")
        assert [state.key for state in BLOCKING.resting().keys] == ["ada"]
    world.settle()
    assert DESK.of("ada") == []
    with world.context(), tenant("acme"):
        assert key.state().is_paused
        key.resume(world.clients)
    world.settle()
    assert DESK.of("ada") == ["0"]
    with world.context(), tenant("acme"):
        key.pause(world.clients)
        send(world.clients, BLOCKING, "ada", "1")
        assert key.drain(world.clients).deleted == 1
        key.resume(world.clients)
    world.settle()
    assert DESK.of("ada") == ["0"]


@flow("test-tenant-orders")
def tenant_order(step: Steps, name: str) -> int:
    """Reserve among the tenant's rows, and keep a large value."""
    with tenant(name):
        number = step.commit("reserve", reserve, "hat")
        text = step.outside("fetch", lambda: LARGE)
    step.wait_for("go")
    return number + len(text)


@one_emulator
def test_steps_of_a_flow_may_run_in_a_tenant_s_context(services: Services) -> None:
    """W1: what a step writes is the tenant's, and its value is where the next delivery reads."""
    world = World(services, flows=[tenant_order])
    with world.context():
        tenant_order.start(world.clients, "o", "acme")
    world.deliver_due()
    with world.context():
        assert FlowValue.query().get(keys_only=True) is not None
        assert tenant_order.signal(world.clients, "o", "go")
    world.settle()
    with world.context():
        state = tenant_order.state("o")
        assert (state.state, state.result) == ("succeeded", 1 + len(LARGE))
        assert FlowStock.get_by_id("hat") is None
        with tenant("acme"):
            assert FlowStock.get_by_id("hat").taken == 1


def test_pages_are_of_the_rows_of_the_tenant(world: World) -> None:
    """A list in a tenant's context has its rows alone, page by page."""
    tokens = PageTokens(["secret-secret-secret-secret-secret"])
    listing: Listing[Any] = Listing("tenant-books", page_size=2)

    def pages() -> list[list[str]]:
        found: list[list[str]] = []
        token: str | None = None
        while token or not found:
            rows = QueryRange(TenantBook.query(), TenantBook.place)
            page = listing.page(tokens, rows, page_token=token)
            found.append([book.place for book in page.items])
            token = page.next_page_token
        return found

    with world.context():
        for name in ("acme", "bolt"):
            with tenant(name):
                ndb.put_multi([TenantBook(id=f"{n}", place=f"{name} {n}") for n in range(3)])
        assert pages() == [[]]
        for name in ("acme", "bolt"):
            with tenant(name):
                assert pages() == [[f"{name} 0", f"{name} 1"], [f"{name} 2"]]


@one_emulator
def test_a_push_of_a_tenant_s_context_comes_into_the_stream_of_the_app(services: Services) -> None:
    """G17: alone and by a transaction; the rows of a stream are the client's."""
    world = stream_world(services)

    def push() -> None:
        WEBLOG.push_in_transaction(world.clients, "requests", {"path": "/t"}, 2_000)

    with world.context(), tenant("acme"):
        WEBLOG.push(world.clients, "requests", [PushedRecord("1", {"path": "/t"}, 1_000)])
        transact(push)
    world.settle()
    with world.context(), tenant("acme"):
        WEBLOG.close(world.clients, "requests")
    world.settle()
    assert windows(world) == {"0": [["/t", 2]]}


def test_a_topic_is_one_for_all_tenants(world: World) -> None:
    """A page of a tenant follows what a task publishes, which runs in the client's namespace."""
    with world.context():
        with tenant("acme"):
            before = topics.version(world.clients.cache, "orders:acme")
        world.clients.publish("orders:acme")
        with tenant("acme"):
            assert topics.version(world.clients.cache, "orders:acme") != before
