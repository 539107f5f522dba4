"""The Datastore in memory that growth is measured on answers as an emulator does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.cloud.datastore_v1.types import (
    BeginTransactionRequest,
    CommitRequest,
    LookupRequest,
    Mutation,
    QueryResultBatch,
    RollbackRequest,
    RunQueryRequest,
)

from benchmarks.memory.queries import MOST_RESULTS
from benchmarks.memory.server import memory_datastore
from rollforward.local.services.standalone import datastore_emulator
from rollforward.runtime import open_datastore

PROJECT = "demo-compared"
NAMES = [f"n{number:02}" for number in range(20)]
STEPS, HISTORIES = 60, 5
FAIL = Mutation.ConflictResolutionStrategy.FAIL
OPERATORS = (1, 2, 3, 4, 5)  # Less, at most, greater, at least, equal.
NOT_FINISHED = QueryResultBatch.MoreResultsType.NOT_FINISHED


class Store:
    """A store that is compared: its answers, without what differs by time."""

    def __init__(self, address: str, stub: Any = None) -> None:
        self.stub = stub or open_datastore(PROJECT, emulator=address).stub
        self.versions: dict[str, int] = {}

    def ask(self, method: str, request: Any) -> Any:
        try:
            return getattr(self.stub, method)(request)
        except grpc.RpcError as error:
            return error.code()  # type: ignore[attr-defined]

    def commit(self, *mutations: Any, transaction: bytes = b"") -> Any:
        request = CommitRequest.pb()(
            project_id=PROJECT, mode=CommitRequest.Mode.TRANSACTIONAL, mutations=mutations
        )
        if transaction:
            request.transaction = transaction
        else:
            request.single_use_transaction.read_write.SetInParent()
        answer = self.ask("commit", CommitRequest.wrap(request))
        if isinstance(answer, grpc.StatusCode):
            return answer
        return [
            [transform.integer_value for transform in result.transform_results]
            for result in type(answer).pb(answer).mutation_results
        ]

    def lookup(self, names: list[str], transaction: bytes = b"") -> Any:
        request = LookupRequest.pb()(project_id=PROJECT)
        request.keys.extend(key_of(name) for name in names)
        if transaction:
            request.read_options.transaction = transaction
        answer = self.ask("lookup", LookupRequest.wrap(request))
        if isinstance(answer, grpc.StatusCode):
            return answer
        found = type(answer).pb(answer).found
        self.versions |= {row.entity.key.path[0].name: row.version for row in found}
        return sorted((row.entity.key.path[0].name, values_of(row.entity)) for row in found)

    def query(self, query: Any) -> list[Any]:
        """Return all results in their order, and follow answers that are cut."""
        request = RunQueryRequest.pb()(project_id=PROJECT)
        request.partition_id.project_id = PROJECT
        request.query.CopyFrom(query)
        found: list[Any] = []
        while True:
            answer = self.ask("run_query", RunQueryRequest.wrap(request))
            batch = type(answer).pb(answer).batch
            found += [
                row.entity.SerializeToString(deterministic=True) for row in batch.entity_results
            ]
            is_full = query.HasField("limit") and len(found) == query.limit.value
            if batch.more_results != NOT_FINISHED or is_full:
                return found
            request.query.start_cursor = batch.end_cursor
            request.query.offset -= batch.skipped_results
            if request.query.HasField("limit"):
                request.query.limit.value = query.limit.value - len(found)

    def begin(self) -> bytes:
        request = BeginTransactionRequest(project_id=PROJECT)
        return bytes(self.stub.begin_transaction(request).transaction)

    def roll_back(self, transaction: bytes) -> Any:
        answer = self.ask("rollback", RollbackRequest(project_id=PROJECT, transaction=transaction))
        return answer if isinstance(answer, grpc.StatusCode) else "rolled back"


def key_of(name: str) -> Any:
    key = LookupRequest.pb()().keys.add()
    key.partition_id.project_id = PROJECT
    key.path.add(kind="Row", name=name)
    return key


def values_of(entity: Any) -> list[Any]:
    return sorted(
        (name, value.SerializeToString(deterministic=True))
        for name, value in entity.properties.items()
    )


def write(operation: str, name: str, **values: Any) -> Any:
    mutation = Mutation.pb()()
    if operation == "delete":
        mutation.delete.CopyFrom(key_of(name))
        return mutation
    entity = getattr(mutation, operation)
    entity.key.CopyFrom(key_of(name))
    for property_name, value in values.items():
        if isinstance(value, list):
            parts = entity.properties[property_name].array_value.values
            for part in value:
                parts.add().integer_value = part
        elif isinstance(value, str):
            entity.properties[property_name].string_value = value
        else:
            entity.properties[property_name].integer_value = value
    return mutation


def increment(name: str, amount: int) -> Any:
    mutation = Mutation.pb()()
    mutation.update.key.CopyFrom(key_of(name))
    mutation.property_mask.SetInParent()
    transform = mutation.property_transforms.add(property="count")
    transform.increment.integer_value = amount
    return mutation


def drawn_mutation(chance: random.Random) -> Any:
    name = chance.choice(NAMES)
    operation = chance.choice(["insert", "update", "upsert", "upsert", "delete", "increment"])
    if operation == "increment":
        return increment(name, chance.randrange(5))
    ranks = [chance.randrange(4) for _ in range(chance.randrange(1, 3))]
    return write(operation, name, count=chance.randrange(6), group=chance.choice("ab"), ranks=ranks)


def drawn_query(chance: random.Random) -> Any:
    """Return a query of one of the forms that the library has."""
    query = RunQueryRequest.pb()().query
    query.kind.add(name="Row")
    conditions: list[tuple[str, int, Any]] = []
    form = chance.choice(["key", "count", "group", "ranks", "both"])
    if form in ("group", "both"):
        conditions.append(("group", 5, chance.choice("ab")))
    if form == "ranks":
        conditions.append(("ranks", 5, chance.randrange(4)))
    if form == "key":
        conditions.append(("__key__", chance.choice(OPERATORS[:4]), chance.choice(NAMES)))
    if form in ("count", "both"):
        conditions.append(("count", chance.choice(OPERATORS[:4]), chance.randrange(6)))
        query.order.add(direction=chance.choice([1, 2])).property.name = "count"
        query.order.add(direction=1).property.name = "__key__"  # Else equal ones have no order.
    query.filter.composite_filter.op = 1
    for name, operator, value in conditions:
        found = query.filter.composite_filter.filters.add().property_filter
        found.property.name, found.op = name, operator
        if name == "__key__":
            found.value.key_value.CopyFrom(key_of(value))
        elif isinstance(value, str):
            found.value.string_value = value
        else:
            found.value.integer_value = value
    if chance.random() < 0.5:
        query.limit.value = chance.randrange(1, 8)
    if chance.random() < 0.3:
        query.offset = chance.randrange(3)
    if chance.random() < 0.4:
        query.projection.add().property.name = "__key__"
    return query


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[Store, Store]]:
    with memory_datastore() as memory, datastore_emulator("firestore") as emulator:
        yield Store(memory), Store(emulator)


@pytest.fixture(autouse=True)
def _empty(stores: tuple[Store, Store]) -> None:
    for store in stores:
        store.commit(*(write("delete", name) for name in NAMES))


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_drawn_history_has_the_same_answers(stores: tuple[Store, Store], seed: int) -> None:
    chance = random.Random(seed)
    refused = 0
    for step in range(STEPS):
        mutation, query, name = drawn_mutation(chance), drawn_query(chance), chance.choice(NAMES)
        ours, theirs = (store.commit(mutation) for store in stores)
        assert ours == theirs, (step, mutation)
        refused += isinstance(ours, grpc.StatusCode)
        assert stores[0].lookup([name]) == stores[1].lookup([name])
        assert stores[0].query(query) == stores[1].query(query), (step, query)
    assert 0 < refused < STEPS


@pytest.mark.parametrize("operation", ["update", "delete"])
def test_a_base_version_is_compared(stores: tuple[Store, Store], operation: str) -> None:
    answers = []
    for store in stores:
        store.commit(write("insert", "n00", count=1))
        store.lookup(["n00"])
        mutation = write(operation, "n00", **({} if operation == "delete" else {"count": 2}))
        mutation.base_version, mutation.conflict_resolution_strategy = store.versions["n00"], FAIL
        store.commit(write("upsert", "n00", count=5))
        stale = store.commit(mutation)
        store.lookup(["n00"])
        mutation.base_version = store.versions["n00"]
        answers.append([stale, store.commit(mutation), store.lookup(["n00"])])
    assert answers[0] == answers[1]
    assert isinstance(answers[0][0], grpc.StatusCode)


def test_a_transaction_whose_read_has_changed_is_aborted() -> None:
    with memory_datastore() as address:
        store = Store(address)
        store.commit(write("insert", "n00", count=1))
        transaction = store.begin()
        before = store.lookup(["n00"], transaction)
        store.commit(increment("n00", 1))
        assert store.lookup(["n00"], transaction) == before  # Of one moment.
        answer = store.commit(write("upsert", "n01", count=1), transaction=transaction)
        assert answer == grpc.StatusCode.ABORTED
        assert store.lookup(["n01"]) == []


def test_an_answer_is_cut() -> None:
    with memory_datastore() as address:
        store = Store(address)
        count = MOST_RESULTS + 20
        store.commit(*(write("insert", f"{number:04}", count=0) for number in range(count)))
        request = RunQueryRequest.pb()(project_id=PROJECT)
        request.query.kind.add(name="Row")
        answer = store.ask("run_query", RunQueryRequest.wrap(request))
        assert len(answer.batch.entity_results) == MOST_RESULTS
        assert answer.batch.more_results == NOT_FINISHED
        assert len(store.query(request.query)) == count
