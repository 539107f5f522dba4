"""Patterns whose rows are in the client's namespace alone refuse calls in a tenant's context.

Two tenants would share a counter, a batch or a flow of one name, or no sweep would find the rows.
"""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from google.cloud.ndb.context import get_context

from rollforward import continuations
from rollforward.batches import TaskBatch
from rollforward.continuations.progress import progress
from rollforward.continuations.upload_entities import put_upload
from rollforward.counters import Counter
from rollforward.datastore.transactions import transact
from rollforward.pull_queues import PullQueue
from tests.infra.world import Services, World
from tests.rollforward.batches.harness import Note, note
from tests.rollforward.continuations.walk_jobs import APPLY, Walk
from tests.rollforward.flows.shop import order
from tests.rollforward.lanes.gathered.mailroom import Note as MailNote
from tests.rollforward.lanes.gathered.mailroom import digest
from tests.rollforward.other_namespaces.tenants import refused, tenant
from tests.rollforward.schedules.test_schedules import USERS, greet_user
from tests.rollforward.tasks.reminders import one_emulator

EXACT = Counter("tenant-likes", queue="default")
GATHERED = Counter("tenant-visits", "gathered", queue="fork-join")
IN_MEMORY = Counter("tenant-hits", "in_memory", queue="fork-join")
ITEMS = PullQueue("tenant-items")
NOTES = TaskBatch("tenant-notes", members=[note])


@one_emulator
@pytest.mark.parametrize("counter", [EXACT, GATHERED, IN_MEMORY], ids=lambda counter: counter.mode)
def test_tenants_share_no_counter(services: Services, counter: Counter) -> None:
    """E1: an increment counts in one total, which every reader sees, or it is refused."""
    world = World(services, counters=[counter])
    clients = world.clients
    with world.context():
        counter.increment(clients, "home", idempotency_key="1")
        for call in (
            lambda: counter.increment(clients, "home"),
            lambda: counter.increment(clients, "home", idempotency_key="2"),
            lambda: counter.increment_many(clients, {"home": 1}),
            lambda: counter.total(clients, "home"),
            lambda: counter.total(clients, "home", max_age_s=60),
        ):
            with refused(world):
                call()
        with tenant("acme"), clients.own_namespace():
            counter.increment(clients, "home", idempotency_key="3")
    world.settle()
    with world.context():
        assert counter.total(clients, "home").value == 2


@one_emulator
def test_a_tenant_s_transaction_adds_to_a_counter_that_all_read(services: Services) -> None:
    """E1: an increment joins the transaction in the client's namespace, or it is refused."""
    world = World(services, counters=[EXACT, GATHERED])
    clients = world.clients

    def add() -> None:
        GATHERED.increment_in_transaction(clients, {"home": 1})

    def add_here() -> None:
        with clients.own_namespace():
            add()

    with world.context():
        for call in (
            lambda: transact(add),
            lambda: transact(lambda: GATHERED.begin_in_transaction({"home": 5})),
            lambda: EXACT.status(clients, "home"),
            lambda: EXACT.resize(clients, "home", 2),
        ):
            with refused(world):
                call()
        with tenant("acme"):
            transact(add_here)
    world.settle()
    with world.context():
        assert GATHERED.total(clients, "home").value == 1


@one_emulator
def test_an_item_is_added_where_workers_lease(world: World) -> None:
    """P1: each item is acked or waits where every worker looks, or it is refused."""
    clients = world.clients

    def add_here() -> None:
        with clients.own_namespace():
            ITEMS.add_in_transaction(clients, "b")

    with world.context():
        id_ = ITEMS.add(clients, "a", tag="t")
        leases = ITEMS.lease(clients)
        for call in (
            lambda: ITEMS.add(clients, "a"),
            lambda: ITEMS.add(clients, "a", idempotency_key="1"),
            lambda: transact(lambda: ITEMS.add_in_transaction(clients, "a")),
            lambda: ITEMS.lease(clients),
            lambda: ITEMS.lease(clients, tag="t"),
            lambda: ITEMS.renew(clients, leases),
            lambda: ITEMS.release(clients, leases),
            lambda: ITEMS.ack(clients, leases),
            lambda: ITEMS.has_items("t"),
            ITEMS.dead_letters,
            lambda: ITEMS.replay(clients, id_),
            lambda: ITEMS.discard(clients, id_),
            lambda: ITEMS.oldest_ready_s(clients),
        ):
            with refused(world):
                call()
        with tenant("acme"):
            transact(add_here)
        assert ITEMS.ack(clients, leases) == []
        assert [lease.payload for lease in ITEMS.lease(clients, limit=5)] == ["b"]


@one_emulator
def test_tenants_share_no_batch(services: Services) -> None:
    """F4: an id is that of one batch for all, or it is refused."""
    world = World(services, batches=[NOTES])
    clients, members = world.clients, [(note, Note("a"))]
    with world.context():
        NOTES.populate(clients, "b", members, seal=True)
        for call in (
            lambda: NOTES.populate(clients, "b", members),
            lambda: transact(lambda: NOTES.populate_in_transaction(clients, "b", members)),
            lambda: NOTES.seal(clients, "b"),
            lambda: NOTES.cancel(clients, "b"),
            lambda: NOTES.run_again(clients, "b"),
            lambda: NOTES.progress("b"),
            lambda: NOTES.nested("b"),
            lambda: list(NOTES.results("b")),
            lambda: list(NOTES.failures("b")),
        ):
            with refused(world):
                call()
    world.settle()
    with world.context():
        assert NOTES.progress("b").done == 1


@one_emulator
def test_tenants_share_no_flow(services: Services) -> None:
    """W18: an id is that of one flow for all, or it is refused."""
    world = World(services, flows=[order])
    clients = world.clients
    with world.context():
        assert order.start(clients, "o", "hat")
        for call in (
            lambda: order.start(clients, "o", "hat"),
            lambda: transact(lambda: order.start(clients, "o", "hat")),
            lambda: order.signal(clients, "o", "courier"),
            lambda: transact(lambda: order.signal(clients, "o", "courier")),
            lambda: order.cancel(clients, "o"),
            lambda: order.retry(clients, "o"),
            lambda: order.state("o"),
        ):
            with refused(world):
                call()
        assert order.cancel(clients, "o")


@one_emulator
def test_a_run_is_started_where_its_tasks_read(services: Services) -> None:
    """A3: a run that no task could find is not begun."""
    world = World(services, jobs=[APPLY])
    clients = world.clients
    now_utc = datetime.datetime(2030, 1, 1)  # noqa: DTZ001
    with world.context():
        for call in (
            lambda: continuations.start(clients, APPLY, Walk("r"), run_id="r"),
            lambda: continuations.cancel("r"),
            lambda: progress("r"),
            lambda: put_upload("u", b"a", now_utc),
        ):
            with refused(world):
                call()


@one_emulator
def test_a_schedule_of_a_user_is_put_where_the_sweep_looks(services: Services) -> None:
    """T3: a user has a schedule that runs, or its call is refused."""
    world = World(services, schedules=[USERS])
    clients = world.clients

    def put() -> None:
        USERS.put(clients, "u", "0 8 * * *", greet_user.bind("u"))

    with world.context():
        for call in (put, lambda: transact(put), lambda: USERS.remove("u")):
            with refused(world):
                call()


@one_emulator
def test_calls_of_tenants_are_not_gathered_into_one_run(services: Services) -> None:
    """R13: a call by the same key from two tenants would be one run's, so it is refused."""
    world = World(services, lanes=[digest])
    clients = world.clients

    def call() -> Any:
        return digest.call(clients, "ada", MailNote("a"))

    with world.context():
        for each in (call, lambda: transact(call)):
            with refused(world):
                each()


def test_the_namespace_of_the_client_is_used_within_any_context(world: World) -> None:
    """A context of the client's namespace stays what it is, and a tenant's comes back."""
    client = world.clients.datastore.namespace
    with world.context():
        with world.clients.own_namespace():
            assert get_context().get_namespace() == client
        with tenant("acme"):
            with world.clients.own_namespace():
                assert get_context().get_namespace() == client
            assert get_context().get_namespace() == "acme"
