"""The store of the simulator answers as the emulators do: drawn programs have the same answers.

One kind of program is of ndb's calls, one of transactions that overlap. The latter is compared with
the emulator whose first commit wins; on the other one the transactions would wait for each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.api_core.exceptions import Aborted
from google.cloud import ndb

from benchmarks.memory.service import MemoryDatastore
from rollforward.local.services.standalone import datastore_emulator
from rollforward.runtime import open_datastore
from rollforward.testing.injection import FaultPlan, FaultyWire, WaitingStub
from rollforward.testing.short_answers import ShortAnswers
from rollforward.testing.world import apart
from tests.contracts.test_memory_store import PROJECT, Store, write
from tests.infra.runs import soak
from tests.simulation.services import channel

SEEDS = range(300 if soak.IS_SOAK else 4)
STEPS = 40
NAMES = [f"n{number:02}" for number in range(12)]
GROUPS = "ab"
FIELDS = ("count", "group")


class Row(ndb.Model):
    count = ndb.IntegerProperty()
    group = ndb.StringProperty()
    ranks = ndb.IntegerProperty(repeated=True)
    note = ndb.TextProperty()


class RolledBackError(Exception):
    """A body that does not commit."""


def simulated(store: MemoryDatastore, answers: ShortAnswers | None = None) -> ndb.Client:
    """Return a client of a store, whose answers may be cut."""
    client = open_datastore(PROJECT, emulator=channel.ADDRESS)
    ask = answers.ask if answers else lambda goes_on, *call: goes_on(*call)
    wire = FaultyWire(FaultPlan(), ask)
    client.stub = channel.datastore_stub(channel.of_datastore(lambda: store), [wire])
    client.stub = WaitingStub(client.stub)
    return client


@contextmanager
def context(client: ndb.Client) -> Iterator[None]:
    with client.context(cache_policy=False, global_cache=None, legacy_data=False):
        yield


@pytest.fixture(scope="module", params=["datastore", "firestore"])
def emulated(request: pytest.FixtureRequest) -> Iterator[tuple[str, ndb.Client]]:
    with datastore_emulator(request.param) as address:
        yield request.param, open_datastore(PROJECT, emulator=address)


# Programs of ndb


def played(client: ndb.Client, chance: random.Random) -> list[Any]:
    """Play a drawn program; return all that it was told."""
    with context(client):
        ndb.delete_multi([ndb.Key(Row, name) for name in NAMES])
    told = []
    for _ in range(STEPS):
        step = chance.choice(PROGRAM)
        with context(client):
            told.append((step.__name__, step(chance)))
    return told


def some_names(chance: random.Random) -> list[str]:
    return chance.sample(NAMES, chance.randrange(1, 5))


def a_row(chance: random.Random, name: str) -> Row:
    ranks = [chance.randrange(4) for _ in range(chance.randrange(3))]
    group = chance.choice([*GROUPS, None])
    return Row(id=name, count=chance.randrange(6), group=group, ranks=ranks, note="n" * 5)


def facts(row: Any) -> Any:
    """Return what is known of a row, of a key, or of a row of a projection."""
    if row is None or isinstance(row, ndb.Key):
        return row and row.id()
    known = row._projection or ("count", "group", "ranks", "note")
    return row.key.id(), [(name, getattr(row, name)) for name in known]


def put(chance: random.Random) -> Any:
    rows = [a_row(chance, name) for name in some_names(chance)]
    return [key.id() for key in ndb.put_multi(rows)]


def delete(chance: random.Random) -> Any:
    ndb.delete_multi([ndb.Key(Row, name) for name in some_names(chance)])


def get(chance: random.Random) -> Any:
    return [
        facts(row) for row in ndb.get_multi([ndb.Key(Row, name) for name in some_names(chance)])
    ]


def query(chance: random.Random) -> Any:
    """Ask by equality, by a range, or by both, in an order."""
    asked, ordered = _query(chance)
    options: dict[str, Any] = {}
    if chance.random() < 0.5:
        options["limit"] = chance.randrange(1, 8)
        options["offset"] = chance.randrange(3)
    form = chance.choice(["whole", "keys", "values"])
    if form == "keys":
        options["keys_only"] = True
    elif form == "values" and ordered == "count":
        options["projection"] = ["count"]
    return [facts(row) for row in asked.fetch(**options)]


def _query(chance: random.Random) -> tuple[Any, str]:
    asked, ordered = Row.query(), chance.choice(["count", "key"])
    if chance.random() < 0.4:
        asked = asked.filter(Row.group == chance.choice(GROUPS))
    elif chance.random() < 0.3:
        asked = asked.filter(Row.ranks == chance.randrange(4))
    if ordered == "count":
        if chance.random() < 0.6:
            asked = asked.filter(Row.count >= chance.randrange(6))
        order = Row.count if chance.random() < 0.5 else -Row.count
        return asked.order(order, Row._key), ordered
    if chance.random() < 0.5:
        asked = asked.filter(Row._key > ndb.Key(Row, chance.choice(NAMES)))
    return asked.order(Row._key), ordered


def page(chance: random.Random) -> Any:
    """Walk a query by its cursors; rows change between the pages."""
    asked, ordered = _query(chance)
    size, cursor, pages = chance.randrange(1, 5), None, []
    for _ in range(20):
        rows, cursor, _ = asked.fetch_page(size, start_cursor=cursor)
        pages.append([facts(row) for row in rows])
        if len(rows) < size:
            break
        if ordered == "key" and chance.random() < 0.5:
            a_row(chance, chance.choice(NAMES)).put()
    return pages


def transact(chance: random.Random) -> Any:
    """Read and write in a transaction, which may be rolled back, and does not see its writes."""
    names, is_kept = some_names(chance), chance.random() < 0.7
    after = [a_row(chance, name) for name in some_names(chance)]

    def body() -> Any:
        keys = [ndb.Key(Row, name) for name in names]
        before = [facts(row) for row in ndb.get_multi(keys)]
        ndb.put_multi(after)
        ndb.Key(Row, names[0]).delete()
        seen = [facts(row) for row in ndb.get_multi(keys, use_cache=False)]
        if not is_kept:
            raise RolledBackError
        return before, seen

    try:
        return ndb.transaction(body, retries=0)
    except RolledBackError:
        return "rolled back"


PROGRAM: list[Callable[[random.Random], Any]] = [
    *(put, put, put, delete, get, query, query, page, transact)
]


@pytest.mark.timeout(0)
def test_any_history_of_ndb_has_the_same_answers(emulated: tuple[str, ndb.Client]) -> None:
    _, theirs = emulated
    for seed in soak.BUDGET.plays(SEEDS):
        ours = played(simulated(MemoryDatastore()), random.Random(seed))
        told = played(theirs, random.Random(seed))
        for mine, other in zip(ours, told, strict=True):
            assert mine == other, f"seed {seed}"


@pytest.mark.parametrize("seed", range(3))
def test_answers_in_parts_are_put_together(seed: int) -> None:
    """What ndb makes of cut answers is what it makes of whole ones."""
    answers = ShortAnswers(random.Random(seed))
    cut = played(simulated(MemoryDatastore(), answers), random.Random(seed))
    assert cut == played(simulated(MemoryDatastore()), random.Random(seed))
    assert min(answers.cut, answers.empty, answers.deferred) > 0


# Transactions that overlap


def overlapping(store: Store, chance: random.Random) -> list[Any]:
    """Play transactions that begin, read, write and commit in between each other.

    Each writes what it has read: of two that read one row the emulator may abort the second even if
    the first has not written it.
    """
    store.commit(*(write("delete", name) for name in NAMES[:4]))
    told: list[Any] = []
    open_ones: list[tuple[bytes, list[str]]] = []
    for _ in range(STEPS):
        step = chance.choice(["begin", "commit", "commit", "roll back", "write"])
        names = chance.sample(NAMES[:4], chance.randrange(1, 3))
        changes = [write("upsert", name, count=chance.randrange(99)) for name in names]
        if step == "begin":
            transaction = store.begin()
            told.append(store.lookup(names, transaction))
            open_ones.append((transaction, names))
        elif step == "write":
            told.append(store.commit(*changes))
        elif open_ones:
            transaction, read = open_ones.pop(chance.randrange(len(open_ones)))
            changes += [write("upsert", name, count=1) for name in read if name not in names]
            if step == "commit":
                told.append(store.commit(*changes, transaction=transaction))
            else:
                told.append(store.roll_back(transaction))
                told.append(store.commit(*changes, transaction=transaction))
    return [*told, store.lookup(NAMES[:4])]


def test_a_transaction_is_aborted_if_its_query_has_another_result() -> None:
    """The new row was no row of the transaction's, so only the query can tell."""
    client = simulated(MemoryDatastore())

    def body() -> None:
        Row(id="sum", count=len(Row.query(Row.group == "a").fetch())).put()
        apart(lambda: insert("late"))

    def insert(name: str) -> None:
        with context(client):
            Row(id=name, group="a").put()

    with context(client):
        with pytest.raises(Aborted):
            ndb.transaction(body, retries=0)
        assert Row.get_by_id("sum") is None
        assert Row.get_by_id("late") is not None


@pytest.mark.timeout(0)
def test_any_history_of_transactions_has_the_same_answers() -> None:
    aborted = 0
    with datastore_emulator("datastore") as address:
        theirs = Store(address)
        for seed in soak.BUDGET.plays(SEEDS):
            ours = MemoryDatastore()
            stub = channel.datastore_stub(channel.of_datastore(lambda ours=ours: ours))
            told = overlapping(Store("", stub), random.Random(seed))
            assert told == overlapping(theirs, random.Random(seed)), f"seed {seed}"
            aborted += told.count(grpc.StatusCode.ABORTED)
    assert aborted
