"""Fork-join queues in a tenant's context: refused, for no fold would find the items there."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.datastore.transactions import transact
from rollforward.fork_join import Accumulator
from tests.infra.world import Services, World
from tests.rollforward.fork_join.tally_queue import TALLIES, Mark, MarkTally, tallied, tally_world
from tests.rollforward.other_namespaces.tenants import refused, tenant


@pytest.fixture
def tallies(services: Services) -> World:
    return tally_world(services)


def test_no_item_is_accepted_where_no_fold_looks(tallies: World) -> None:
    """D1: an accepted item is folded, so what would not be is refused, and the error says why."""
    hits = Accumulator("hits", TALLIES, combine=lambda a, b: Mark(a.label + b.label))
    clients, mark = tallies.clients, Mark("a")

    def in_transaction() -> Any:
        return transact(lambda: TALLIES.insert_in_transaction(clients, "t", mark))

    with tallies.context():
        accepted = TALLIES.insert(clients, "t", mark)
        for call in (
            lambda: TALLIES.insert(clients, "t", mark),
            lambda: TALLIES.insert(clients, "t", mark, idempotency_key="r"),
            lambda: TALLIES.insert_each(clients, [("t", mark)]),
            lambda: TALLIES.insert_batch(clients, "t", [mark]),
            in_transaction,
            lambda: hits.add(clients, "t", mark),
            lambda: TALLIES.depth("t"),
            lambda: TALLIES.outcome(accepted),
        ):
            with refused(tallies):
                call()
    tallies.settle()
    with tallies.context():
        assert tallied("t") == {"a": 1}


def test_a_tenant_s_transaction_may_insert_in_the_client_s_namespace(tallies: World) -> None:
    """D1: its own rows and the item are committed together, each in its namespace."""
    clients = tallies.clients

    def body() -> None:
        MarkTally(id="own").put()
        with clients.own_namespace():
            TALLIES.insert_in_transaction(clients, "acme:t", Mark("a"))

    with tallies.context():
        with tenant("acme"):
            transact(body)
            assert MarkTally.get_by_id("own") is not None
            with clients.own_namespace():
                TALLIES.insert(clients, "acme:t", Mark("b"))
                assert TALLIES.depth("acme:t").waiting == 2
        with clients.own_namespace():
            assert MarkTally.get_by_id("own") is None
    tallies.settle()
    with tallies.context():
        assert tallied("acme:t") == {"a": 1, "b": 1}
