"""Contexts of a tenant's namespace: what they enqueue and save reaches the app all the same."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.ndb.context import get_context

from rollforward import outbox
from rollforward.datastore import current
from rollforward.datastore.contexts import context_namespace
from rollforward.datastore.transactions import transact
from rollforward.materialized_views import ViewMaintenance
from rollforward.runtime.sharing import shared_transaction
from rollforward.runtime.sharing.shared_transaction import SharedBody, transact_shared
from rollforward.testing.injection import ERROR
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    Number,
    Numbers,
    counts,
    heal,
    in_a_thread,
    one_emulator,
    played,
)
from tests.rollforward.outbox.order_tasks import Order, Step, step
from tests.rollforward.outbox.rows import steps_sent, strand
from tests.rollforward.runtime.sharing.shared_bodies import RunningSum

pytestmark = pytest.mark.fast


def tenant(name: str) -> Any:
    """Return a context of a tenant, within the one that is open."""
    return get_context().new(namespace=name).use()


@one_emulator
def test_a_task_that_a_tenant_s_context_commits_is_found_by_the_sweep(world: World) -> None:
    """B1: its row is where the sweep looks, and the tenant's data where the tenant looks."""

    def body() -> None:
        Order(id="o").put()
        outbox.enqueue(world.clients, step, Step("o", "x"))

    with world.context(), tenant("a"):
        world.plan.break_next("CreateTask", ERROR)
        transact(body)
        assert context_namespace() is not None
        assert Order.get_by_id("o") is not None
    with world.context():
        assert context_namespace() is None
        assert Order.get_by_id("o") is None
    assert steps_sent(world) == []
    world.clock.sleep(60)
    world.sweep()
    assert steps_sent(world) == ["x"]


@one_emulator
def test_a_save_by_a_tenant_s_context_reaches_the_rows_that_are_read(services: Services) -> None:
    """C1: also after a rebuild, which the catalog tells."""
    with played(services, [Numbers]) as (world, views):
        builds = ViewMaintenance(views, queue="default")
        views.save(world.clients, Number(id="n", row="all", said={"n": 0}))
        world.settle()
        builds.rebuild(world.clients, Numbers)
        in_a_thread(lambda: heal(world, builds))
        for n, name in enumerate(("a", "b"), 1):
            with tenant(name):
                views.save(world.clients, Number(id="n", row="all", said={"n": n}))
            world.settle()
            assert counts(world, Numbers, views) == {"all": n + 1}
        with tenant("a"):
            token = views.save(world.clients, Number(id="n", row="b", said={"n": 5}))
            assert views.read(world.clients, Numbers).freshness.waiting == 2
            assert not views.wait(world.clients, token, 0)
        world.settle()
        with tenant("a"):
            assert views.wait(world.clients, token, 0)
            assert counts(world, Numbers, views) == {"all": 2, "b": 1}
            assert [value for _, value in views.top(Numbers, "b", "n")] == [5]
            assert views.distinct(Numbers, "all", "n") == 2


@one_emulator
def test_the_depth_of_the_outbox_is_the_same_in_each_context(world: World) -> None:
    """A tenant's page shows what waits for the app."""
    strand(world, 150)
    with world.context():
        waiting = outbox.depth(world.clients).waiting
        with tenant("a"):
            assert outbox.depth(world.clients).waiting == waiting > 0


@one_emulator
def test_no_body_runs_in_the_namespace_of_another_caller(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant's writes go among its own, whoever commits at the same time."""
    monkeypatch.setattr(shared_transaction, "MAX_WAIT_S", 60)
    is_in_progress, may_go_on = threading.Event(), threading.Event()

    def body(name: str) -> SharedBody[None]:
        def run(keys: Sequence[Any]) -> None:
            is_in_progress.set()
            assert may_go_on.wait(60)
            current.put(RunningSum(id=name, total=1))

        return SharedBody(run, lambda draw: [ndb.Key(RunningSum, name)], frozenset([name]))

    def save(namespace: str, name: str) -> None:
        with world.clients.context(), tenant(namespace):
            transact_shared(world.clients, body(name))

    names = [("a", "1"), ("a", "2"), ("b", "3"), ("b", "4"), ("c", "5")]
    threads = [threading.Thread(target=save, args=args) for args in names]
    threads[0].start()
    assert is_in_progress.wait(60)
    for thread in threads[1:]:
        thread.start()
    threads[-1].join(0.3)
    may_go_on.set()
    for thread in threads:
        thread.join(60)

    with world.context():
        for namespace in "abc":
            with tenant(namespace):
                stored = [row.key.id() for row in RunningSum.query().order(RunningSum.key).fetch()]
            assert stored == [name for place, name in names if place == namespace]
