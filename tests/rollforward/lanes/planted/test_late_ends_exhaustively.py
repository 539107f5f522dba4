"""Ends of a task whose claim is taken away meanwhile, in every interleaving with who takes it.

A task is postponed, or dead-lettered, by the versions of what was read: each read is a step of its
own, and so is the commit. Its delivery lives, and shows no sign of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.transactions import Transaction, run_attempts, run_body
from rollforward.lanes import Lane
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import LaneState, LaneTask, state_key
from rollforward.lanes.runs import claims, delivery, ends
from rollforward.runtime import Clients
from rollforward.tasks import Reject, task
from rollforward.tasks.errors import Retry
from rollforward.telemetry import current_task
from tests.infra.memory_datastore import Memory
from tests.infra.model_checking.model_checker import End, Search
from tests.infra.model_checking.stepwise import NOON, Process, Run, rows
from tests.infra.runs import sampling
from tests.rollforward.lanes.test_lanes_exhaustively import acting, in_steps

__all__ = ["in_steps"]

# One delivery claims all tasks of the key.
ALONE = Lane("searched")
LATER, NEVER = "later", "never"


class LateRun(ndb.Model):
    """The runs of a task: how many began, and the places in the lane at which some ended it."""

    begun = ndb.IntegerProperty(default=0)
    ended_at = ndb.JsonProperty(default=[])


@task("/tasks/tests/searched-late", queue="default")
def work(clients: Clients, text: str) -> None:
    """Refuse the second task when it runs first, unless its claim was just taken over."""
    current = current_task()
    place = current.name if current is not None else ""

    def begin(memory: Memory) -> int:
        row = memory.get(ndb.Key(LateRun, text)) or LateRun(id=text)
        row.begun += 1
        memory.put(row)
        return int(row.begun)

    def end(memory: Memory) -> None:
        row = memory.get(ndb.Key(LateRun, text))
        row.ended_at = sorted({*row.ended_at, place})
        memory.put(row)

    is_refused = rows("begin", begin) == 1 and Run.current.process.name != "taker"
    if text == LATER and is_refused:
        raise Retry("not yet", after_s=0)
    if text == NEVER and is_refused:
        raise Reject("nobody is in")
    rows("end", end)


class Versions:
    """What a body has read, by key, as it was stored; and what it writes."""

    def __init__(self) -> None:
        self.read: dict[Any, str | None] = {}
        self.written: dict[Any, Any] = {}  # None: it is deleted.

    def get_multi(self, keys: Sequence[Any]) -> list[Any]:
        facts = rows("read", lambda memory: [memory.facts.get(key) for key in keys])
        for key, fact in zip(keys, facts, strict=True):
            self.read.setdefault(key, fact[2] if fact else None)
        return [
            fact[0](key=key, **fact[1]) if fact else None
            for key, fact in zip(keys, facts, strict=True)
        ]

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        def put(row: Any) -> None:
            self.written[row.key] = row

        def delete(key: Any) -> None:
            self.written[key] = None

        with (
            mock.patch.object(ndb, "get_multi", self.get_multi),
            mock.patch.object(ndb.Key, "get", lambda key: self.get_multi([key])[0]),
            mock.patch.object(ndb.Model, "put", put),
            mock.patch.object(ndb.Key, "delete", delete),
        ):
            yield

    def commit(self, memory: Memory) -> None:
        for key in self.written:
            there = memory.facts.get(key)
            if key in self.read and self.read[key] != (there[2] if there else None):
                raise rpc_errors.Aborted("made by the search")
        for key, row in self.written.items():
            memory.delete(key) if row is None else memory.put(row)


def by_version(clients: Any, body: Callable[[], Any], **options: Any) -> Any:
    """Run a body, and commit what it writes unless that has changed since it was read."""

    def attempt(transaction: Transaction) -> Any:
        versions = Versions()
        with versions.noted():
            result = run_body(body, transaction)
        if versions.written:
            rows("commit", versions.commit)
        return result

    return run_attempts(attempt, attempts=4, pause=lambda failures: None)


@pytest.fixture(autouse=True)
def ends_in_steps(in_steps: None) -> Iterator[None]:
    """Let the ends of a task be steps; all other transactions are one step each."""
    with mock.patch.object(ends, "transact_by_version", by_version):
        yield


def running(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(clients: Any) -> Any:
        def with_tasks(clients: Any) -> Any:
            clients.task_paths = {each.path: each for each in (work, ALONE.task)}
            return act(clients)

        return acting(ALONE, with_tasks)(clients)

    return run


def delivering(args: LaneArgs) -> Callable[[Any], Any]:
    return running(lambda clients: delivery.deliver(ALONE, clients, args))


def search_of(text: str) -> Search:
    """Return the search of three tasks, their hints, and a delivery that takes claims away."""
    many = [work.bind("a"), work.bind(text), work.bind("c")]
    add = running(lambda clients: all(work.enqueue_many(clients, many, lane=ALONE("k"))))
    taker = delivering(LaneArgs("searched|k", is_check=True))
    return Search(
        [Process("add", add, NOON), Process("taker", taker, NOON, follows="add")],
        lambda clients, hint: delivering(ALONE.task.read(hint.body))(clients),
    )


def check(text: str, end: End) -> None:
    """The second task is dead, or has ended at one place: it did not run there and was moved."""
    kinds = [key.kind() for key in end.rows.facts]
    assert "LaneTask" not in kinds, kinds
    assert "LaneState" not in kinds, kinds
    row = end.rows.get(ndb.Key(LateRun, text))
    assert len(row.ended_at) + kinds.count("DeadTask") == 1, (row, kinds)


def explore(text: str) -> int:
    search = search_of(text)
    for end in search.ends():
        try:
            check(text, end)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{search.story(end)}") from error
    return search.states


@sampling.minute
@pytest.mark.parametrize("text", [LATER, NEVER])
def test_a_task_ends_once_while_its_claim_is_taken_away(text: str) -> None:
    """K2, K4, K7: who takes a claim and who ends a task under it cannot both succeed."""
    assert explore(text) > 50


# Planted bugs


def _leaves_the_task_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim is taken away, and the task that may be at work is not written."""

    def put_without_claim(
        clients: Any, lane: Any, state: LaneState, claim: Any, *, counts: bool
    ) -> None:
        claims.put_state(clients, state)

    monkeypatch.setattr(claims, "put_without_claim", put_without_claim)


def _reads_the_state_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery makes sure of its claim before it reads the task."""

    def mine(holder: Any, task: LaneTask) -> tuple[LaneTask | None, LaneState | None]:
        state: LaneState | None = state_key(holder.lane_id).get()
        if state is None or state.claim_of(holder.claim.owner) is None:
            return None, None
        return task.key.get(), state

    monkeypatch.setattr(ends, "_owned", mine)


@sampling.minute
@pytest.mark.parametrize(
    ("plant", "text"), [(_leaves_the_task_as_it_is, LATER), (_reads_the_state_first, NEVER)]
)
def test_the_search_bites(
    plant: Callable[[pytest.MonkeyPatch], None], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one of its guards taken out, the same search fails."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        explore(text)
