"""Callers that share a commit stay within its limits together."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.datastore_v1.types import Entity, Mutation

from rollforward.datastore import current
from rollforward.datastore.commit import Commit
from rollforward.runtime.channel import limits
from rollforward.runtime.process.process_state import ProcessState
from rollforward.runtime.sharing import conditional_writes, shared_transaction
from rollforward.runtime.sharing.group_commit import _Waiter
from rollforward.runtime.sharing.shared_transaction import SharedBody, _Caller
from tests.infra.world import World
from tests.rollforward.runtime.sharing.shared_bodies import together

pytestmark = pytest.mark.fast

CLIENT: Any = SimpleNamespace(project="p", database=None)
CLIENTS: Any = SimpleNamespace(datastore=CLIENT, process_state=ProcessState())
EMULATORS_MOST = 4 * 2**20
BODY: SharedBody[None] = SharedBody(lambda draw: None, lambda draw: [])


def entity(name: str, size: int) -> Any:
    row = Entity.pb()()
    row.key.path.add(kind="Row", name=name)
    row.properties["data"].exclude_from_indexes = True
    row.properties["data"].blob_value = b"x" * size
    return row


def group_of(commits: list[Commit]) -> list[Commit]:
    """Return the commits of the first group, if all callers came during the one before."""
    groups = conditional_writes._groups(CLIENTS)
    waiters: Any = [_Waiter(conditional_writes._Call(commit)) for commit in commits]
    waiters[0].is_leader = True
    groups._waiting = list(waiters)
    return [waiter.call.commit for waiter in groups._take(waiters[0])]


@pytest.mark.parametrize(
    ("rows", "row_bytes", "sharing"),
    [(1, 10, 4), (250, 10, 2), (251, 10, 1), (1, 900_000, 4), (2, 900_000, 2), (3, 900_000, 1)],
)
def test_a_group_of_conditional_writes_is_no_larger_than_a_commit(
    rows: int, row_bytes: int, sharing: int
) -> None:
    """Limit `commit`, 500 entities, and 4 MiB of a request, which the emulators take."""
    commits = [Commit(CLIENT) for _ in range(4)]
    for caller, commit in enumerate(commits):
        for number in range(rows):
            commit.insert(entity(f"{caller}-{number}", row_bytes))

    group = group_of(commits)

    assert len(group) == sharing
    assert sum(map(len, group)) <= limits.COMMIT.most
    assert sum(commit.size for commit in group) <= EMULATORS_MOST


@pytest.mark.parametrize(
    ("rows", "row_bytes", "sharing"), [(1, 10, 12), (50, 10, 10), (1, 1_000_000, 3)]
)
def test_bodies_that_share_a_transaction_write_no_more_than_a_commit_takes(
    rows: int, row_bytes: int, sharing: int
) -> None:
    """Limit `commit`, and what the emulators take: those left out run again in the next one."""
    callers = [_Caller(BODY, "") for _ in range(12)]
    for number, caller in enumerate(callers):
        written = [entity(f"{number}-{row}", row_bytes) for row in range(rows)]
        caller.mutations = [Mutation.pb()(upsert=row) for row in written]

    committed = shared_transaction._committable(callers)

    assert committed == callers[:sharing]
    assert [caller.is_deferred for caller in callers] == [False] * sharing + [True] * (12 - sharing)
    sizes = [caller.size() for caller in committed]
    assert sum(mutations for mutations, _ in sizes) <= limits.COMMIT.most
    assert sum(size for _, size in sizes) <= EMULATORS_MOST


class Picture(ndb.Model):
    """An entity near the size that Datastore takes."""

    data = ndb.BlobProperty()


def store(name: str) -> SharedBody[str]:
    def run(keys: Sequence[Any]) -> str:
        current.put(Picture(id=name, data=b"x" * 900_000))
        return name

    return SharedBody(run, lambda draw: [ndb.Key(Picture, name)], frozenset([name]))


def test_large_entities_of_many_callers_are_stored_as_by_each_alone(watched: World) -> None:
    """They fit into no commit together, and the emulators do not say whose fault that is."""
    names = list("abcdefg")

    assert together(watched.clients, [store(name) for name in names]) == names
    stored = ndb.get_multi([ndb.Key(Picture, name) for name in names])
    assert [len(picture.data) for picture in stored] == [900_000] * 7
    assert watched.plan.calls.count("Commit") == 2
