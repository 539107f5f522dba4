"""Answers that are cut short: each read follows them to the end, and takes nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.datastore_v1.types import LookupRequest, LookupResponse

from rollforward.datastore import bodies, queries
from rollforward.datastore.bodies import Name
from rollforward.datastore.lookup import lookup
from rollforward.datastore.stub import key_of
from rollforward.datastore.transactions import NoTransactionError, transact
from rollforward.datastore.versions import lookup_versions, read_versions
from rollforward.runtime.clients import open_datastore
from rollforward.testing.short_answers import shortened, whole
from tests.infra.world import World
from tests.rollforward.datastore.counters import Tally

pytestmark = pytest.mark.fast

NAMES = [f"p:{number:03d}" for number in range(40)]


def store(watched_world: World, names: Sequence[str] = NAMES) -> None:
    for start in range(0, len(names), 400):
        inserts = [(Name("StreamSlab", name), name.encode()) for name in names[start : start + 400]]
        bodies.commit(watched_world.clients.datastore, inserts=inserts)


def test_a_query_of_rows_is_followed_to_its_end(watched_world: World) -> None:
    """With a limit and without a result as well: rows were lost without a word."""
    client = watched_world.clients.datastore
    store(watched_world)

    with shortened(watched_world) as answers:
        for _ in range(5):
            rows = bodies.scan(client, "StreamSlab", "p:", "p;", 100)
            assert [(row.name, row.body.decode()) for row in rows] == [
                (name, name) for name in NAMES
            ]
            names = bodies.first_names(client, "StreamSlab", "p:010", "p;", 25)
            assert names == NAMES[10:35]
            assert bodies.count(client, "StreamSlab", "p:", "p;", 7) == 7
            assert bodies.scan(client, "StreamSlab", "q:", "q;", 5) == []

    assert answers.cut
    assert answers.empty


def test_an_answer_that_the_service_cuts_by_itself_is_followed(watched_world: World) -> None:
    """The Datastore emulator sends 300 at once."""
    names = [f"p:{number:03d}" for number in range(700)]
    store(watched_world, names)

    client = watched_world.clients.datastore
    assert bodies.first_names(client, "StreamSlab", "p:", "p;", 1000) == names
    assert bodies.count(client, "StreamSlab", "p:", "p;", 650) == 650


def test_a_query_that_is_cut_is_of_one_moment(watched_world: World) -> None:
    """With snapshots, a write between two answers is in neither of them."""
    client, plan = watched_world.clients.datastore, watched_world.plan
    store(watched_world)
    plan.reset("overlap", 1)
    plan.on_fire = lambda: bodies.commit(client, deletes=[(Name("StreamSlab", NAMES[-1]), None)])

    with shortened(watched_world):
        names = bodies.first_names(client, "StreamSlab", "p:", "p;", 100)

    assert plan.fired
    has_snapshots = watched_world.services.datastore_kind == "firestore"
    assert names == (NAMES if has_snapshots else NAMES[:-1])


@pytest.mark.parametrize("seed", range(3))
def test_a_lookup_is_followed_to_its_end(watched_world: World, seed: int) -> None:
    """Keys that are left for the next call come in any order."""
    client = watched_world.clients.datastore
    store(watched_world)
    keys = [Tally(id=name, count=7).put() for name in NAMES[:9]]
    absent = ndb.Key(Tally, "missing")

    with shortened(watched_world, seed) as answers:
        rows, moment = bodies.read(client, [Name("StreamSlab", name) for name in ["?", *NAMES]])
        versioned = read_versions(client, [absent, *keys, keys[0]])
        _, is_one_moment = lookup_versions(client, keys)

    assert [None if row is None else row.name for row in rows] == [None, *NAMES]
    assert [None if result is None else result[0].key for result in versioned] == [
        None,
        *keys,
        keys[0],
    ]
    assert answers.deferred
    assert is_one_moment == (moment is not None)


def test_a_lookup_that_is_cut_is_of_one_moment(watched_world: World) -> None:
    client, plan = watched_world.clients.datastore, watched_world.plan
    store(watched_world)
    names = [Name("StreamSlab", name) for name in NAMES]
    plan.reset("overlap", 1)
    plan.on_fire = lambda: bodies.commit(client, deletes=[(name, None) for name in names])

    with shortened(watched_world, seed=1) as answers:
        rows, moment = bodies.read(client, names)

    assert plan.fired
    assert answers.deferred
    assert (None not in rows) == (moment is not None)


@pytest.mark.parametrize("calls_made", range(4))
def test_without_a_moment_only_one_call_is_of_one(calls_made: int) -> None:
    """A service without snapshots leaves keys for the next call: two calls are two moments."""
    names = [Name("StreamSlab", name) for name in NAMES[:calls_made]]

    def respond(request: Any, metadata: Any) -> LookupResponse:
        return LookupResponse(deferred=list(LookupRequest(keys=request.keys[1:]).keys))

    client: Any = SimpleNamespace(
        project="p", database="", namespace="", stub=SimpleNamespace(lookup=respond)
    )
    answer = lookup(client, [key_of(client, *name) for name in names])

    assert (answer.moment, answer.is_one_moment) == (None, calls_made <= 1)


def test_more_keys_than_one_lookup_takes_are_looked_up_in_several(watched_world: World) -> None:
    store(watched_world)

    watched_world.plan.reset()
    asked = [Name("StreamSlab", f"p:{number:03d}") for number in range(2_100)]
    with whole(watched_world):
        rows, _ = bodies.read(watched_world.clients.datastore, asked)

    assert [row.name for row in rows if row is not None] == NAMES
    assert watched_world.plan.calls == ["Lookup"] * 3


def test_a_row_is_read_in_a_transaction_or_not_at_all(watched_world: World) -> None:
    store(watched_world)

    def body() -> bodies.Row | None:
        return bodies.read_in_transaction(
            watched_world.clients.datastore, Name("StreamSlab", NAMES[0])
        )

    row = transact(body)

    assert row is not None
    assert row.body == NAMES[0].encode()
    with pytest.raises(NoTransactionError):
        body()


def test_ndb_follows_its_queries_and_lookups_to_the_end(watched_world: World) -> None:
    """A library of others; its queries are most of ours."""
    keys = ndb.put_multi([Tally(id=name, count=number) for number, name in enumerate(NAMES)])
    query = Tally.query().order(Tally._key)

    with shortened(watched_world) as answers:
        for _ in range(5):
            assert query.fetch(keys_only=True) == keys
            assert [tally.key for tally in query.fetch(100)] == keys
            assert query.fetch(7, keys_only=True) == keys[:7]
            assert query.get(keys_only=True) == keys[0]
            assert list(query.iter(keys_only=True)) == keys
            assert [tally.key for tally in ndb.get_multi(keys)] == keys

    assert answers.cut
    assert answers.empty
    assert answers.deferred


def test_a_loop_that_takes_a_part_for_the_whole_is_found(
    watched_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: a loop that ignores NOT_FINISHED."""
    monkeypatch.setattr(queries, "NOT_FINISHED", None)

    with pytest.raises(AssertionError):
        test_a_query_of_rows_is_followed_to_its_end(watched_world)


def test_names_of_several_ranges_are_asked_for_side_by_side(
    watched_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is followed to its end, also of a moment; if one is refused, so are all."""
    client = watched_world.clients.datastore
    store(watched_world)
    monkeypatch.setattr(queries, "MAX_IN_PARALLEL", 4)
    _, moment = bodies.read(client, [Name("StreamSlab", NAMES[0])])
    ranges = [bodies.Range("StreamSlab", name, "p;", 1 + n, moment) for n, name in enumerate(NAMES)]

    with shortened(watched_world) as answers:
        results = bodies.first_names_of(client, [*ranges, bodies.Range("StreamSlab", "q", "r", 9)])

    assert results == [*(NAMES[n : 2 * n + 1] for n in range(len(NAMES))), []]
    assert answers.cut
    assert answers.empty
    assert bodies.first_names_of(client, []) == []

    watched_world.plan.reset("error", 2)
    with pytest.raises(rpc_errors.ServiceUnavailable):
        bodies.first_names_of(client, ranges)
    assert len(watched_world.plan.calls) == 4  # Those that were under way.


def test_the_client_of_the_app_asks_side_by_side(watched_world: World) -> None:
    """It has futures, unlike the blocking stubs of other tests."""
    store(watched_world)
    of = watched_world.clients.datastore
    client = open_datastore(
        of.project,
        emulator=watched_world.services.datastore,
        namespace=of.namespace,
        database=of.database,
    )
    ranges = [bodies.Range("StreamSlab", name, "p;", 3) for name in NAMES * 2]

    results = bodies.first_names_of(client, ranges)

    assert results == [NAMES[n : n + 3] for n in range(len(NAMES))] * 2
