"""Conditional writes that share a commit: each caller sees what it would see alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.versions import commit_of_puts, insert_all, put_if_current
from rollforward.runtime.sharing import conditional_writes
from rollforward.runtime.sharing.conditional_writes import apply_together
from tests.infra.world import World

WRITERS = 6


class SharedRow(ndb.Model):
    """A row of one writer."""

    number = ndb.IntegerProperty(indexed=False, default=0)


@pytest.fixture
def rows(world: World) -> Any:
    """Rows of some writers, each with its version."""
    with world.clients.context():
        entities = [SharedRow(id=f"{number}") for number in range(WRITERS)]
        ndb.delete_multi([row.key for row in entities])
        yield list(zip(entities, insert_all(world.clients.datastore, entities), strict=True))


def calls(world: World, rows: Any) -> list[Any]:
    """Return the calls that write 1 into each of some rows."""
    for row, _ in rows:
        row.number = 1
    client = world.clients.datastore
    return [conditional_writes._Call(commit_of_puts(client, [pair])) for pair in rows]


def numbers() -> list[int]:
    return [SharedRow.get_by_id(f"{number}").number for number in range(WRITERS)]


def test_a_group_is_one_commit_and_each_gets_its_version(world: World, rows: Any) -> None:
    """A second write by these versions succeeds."""
    with world.plan.watched():
        versions = conditional_writes._apply(world.clients.datastore, calls(world, rows))
        assert list(world.plan.calls) == ["Commit"]
    for (row, _), [version] in zip(rows, versions, strict=True):
        row.number = 2
        put_if_current(world.clients.datastore, row, version)
    assert numbers() == [2] * WRITERS


def test_one_that_has_lost_its_race_fails_alone(world: World, rows: Any) -> None:
    """The row that another has written keeps its value, and the other rows are written."""
    stale = ndb.Key(SharedRow, "2").get()
    stale.number = 7
    put_if_current(world.clients.datastore, stale, rows[2][1])
    answers = conditional_writes._apply(world.clients.datastore, calls(world, rows))
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    assert [type(error) for error in errors] == [rpc_errors.FailedPrecondition]
    assert answers.index(errors[0]) == 2
    assert numbers() == [1, 1, 7, 1, 1, 1]


def test_threads_write_their_own_rows_and_two_of_one_row_never_both(
    world: World, rows: Any
) -> None:
    """Of two writers by the same version one is refused, however they are grouped."""

    def write(number: int) -> str:
        with world.clients.context():
            row = SharedRow(id=f"{number % WRITERS}", number=number + 1)
            try:
                commit = commit_of_puts(world.clients.datastore, [(row, rows[number % WRITERS][1])])
                apply_together(world.clients, commit)
            except rpc_errors.GoogleAPICallError as error:
                return type(error).__name__
        return ""

    with ThreadPoolExecutor(2 * WRITERS) as threads:
        answers = list(threads.map(write, range(2 * WRITERS)))
    for number in range(WRITERS):
        of_row = [answers[number], answers[number + WRITERS]]
        assert sorted(map(bool, of_row)) == [False, True], answers
        assert ndb.Key(SharedRow, f"{number}").get().number % WRITERS == (number + 1) % WRITERS
