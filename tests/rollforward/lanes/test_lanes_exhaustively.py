"""Tasks of a key in every interleaving of two adders and the deliveries that they cause.

The real code, run one call at a time. Each search comes to its end: no state is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.lanes import Lane, hints
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows import states
from rollforward.lanes.rows.entities import Claim, state_key
from rollforward.lanes.runs import claims, dead_claims, delivery, ends, lookups
from rollforward.runtime import Clients
from rollforward.runtime.process.heartbeats import NoHeart
from rollforward.tasks import task
from rollforward.telemetry import current_task
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.memory_datastore import Memory
from tests.infra.model_checking import stepwise
from tests.infra.model_checking.model_checker import CRASH, FLUSH, End, Search
from tests.infra.model_checking.stepwise import NOON, ROWS, Call, Process, Run, rows

ORDERED = Lane("searched", order=True)
PAIRED = Lane("searched", limit=2)


class SearchedTask(ndb.Model):
    """The runs of a task: how many began and ended, and the most tasks at work with it.

    `was_passed`: another one began when it was done; `blamed`: then a death counted against it.
    """

    begun = ndb.IntegerProperty(default=0)
    ended = ndb.IntegerProperty(default=0)
    at_work = ndb.IntegerProperty(default=0)
    turn = ndb.IntegerProperty(default=0)
    was_passed = ndb.BooleanProperty(default=False)
    blamed = ndb.BooleanProperty(default=False)


def _tasks_in(memory: Memory) -> list[Any]:
    return [memory.get(key) for key in list(memory.facts) if key.kind() == "SearchedTask"]


@task("/tasks/tests/searched", queue="default")
def work(clients: Clients, text: str) -> None:
    """Write down that a task begins, and that it ends."""
    current = current_task()
    failures = current.attempt if current is not None else 0

    def begin(memory: Memory) -> None:
        others = [row for row in _tasks_in(memory) if row.begun > row.ended]
        row = memory.get(ndb.Key(SearchedTask, text)) or SearchedTask(id=text)
        row.begun += 1
        row.at_work = max(row.at_work, len(others) + 1)
        row.blamed = row.blamed or (row.was_passed and failures > 0)
        memory.put(row)
        for other in _tasks_in(memory):
            if other.key != row.key and other.begun == other.ended and not other.was_passed:
                other.was_passed = True
                memory.put(other)

    def end(memory: Memory) -> None:
        row = memory.get(ndb.Key(SearchedTask, text))
        row.turn = row.turn or sum(bool(other.ended) for other in _tasks_in(memory)) + 1
        row.ended += 1
        memory.put(row)

    rows("begin", begin)
    rows("end", end)


class Waiting:
    """The rows of a key, as the query of it returns them."""

    def __init__(self, lane_id: str, until: int | None = None) -> None:
        self.lane_id = lane_id

    def fetch(self, limit: int, *, keys_only: bool = False) -> list[Any]:
        def effect(memory: Memory) -> list[Any]:
            keys = sorted(key for key in memory.facts if key.kind() == "LaneTask")[:limit]
            return keys if keys_only else [memory.get(key) for key in keys]

        return rows("query", effect)  # type: ignore[no-any-return]


def last_place(clients: Any, lane_id: str, *, is_ordered: bool) -> int:
    def effect(memory: Memory) -> int:
        keys = sorted(key for key in memory.facts if key.kind() == "LaneTask")
        return int(keys[-1].id()[len(lane_id) + 1 :][:16]) + 1 if keys else 17

    return rows("query", effect) if is_ordered else 17


def transact(body: Callable[[], Any], **options: Any) -> Any:
    for _ in range(4):
        try:
            return Run.current.ask(Call(ROWS, "transaction"), body)
        except rpc_errors.ServiceUnavailable as error:
            lost = error
    raise lost


def by_version(clients: Any, body: Callable[[], Any], **options: Any) -> Any:
    return transact(body)


class Deletion:
    """A commit that deletes rows."""

    def __init__(self, client: Any) -> None:
        self.keys: list[Any] = []

    def delete(self, key: Any) -> None:
        self.keys.append(key)


def delete_multi(keys: Any) -> None:
    """Delete rows by one commit, as one step."""
    rows("delete", lambda memory: [memory.delete(key) for key in keys])


def message(
    clients: Any, task: Any, args: LaneArgs, at: Any, name: tuple[str | int, ...] | None = None
) -> Any:
    """Return a hint of its own: the search takes those with the same body for the same one."""
    return task.message(replace(args, early=int(clients.new_id()[:6], 16)))


@pytest.fixture(autouse=True)
def in_steps() -> Iterator[None]:
    """Let the Datastore of lanes be the search's."""
    lanes = "rollforward.lanes"
    standing = partial(claims.Holder, monotonic=lambda: 0.0)
    with (
        stepwise.stepwise(),
        mock.patch(f"{lanes}.adding._next_place", last_place),
        mock.patch(f"{lanes}.adding.commit_of_puts", lambda client, puts: puts),
        mock.patch(
            f"{lanes}.adding.apply_together",
            lambda clients, puts: stepwise._insert_all(None, [row for row, _ in puts]),
        ),
        mock.patch.object(hints, "_message", message),
        mock.patch.object(hints, "create_later", lambda clients, m: clients.tasks.create_many(m)),
        mock.patch.object(lookups, "waiting", Waiting),
        mock.patch.object(lookups, "SLICE_S", 60.0),
        mock.patch.object(claims, "transact_by_version", by_version),
        mock.patch.object(states, "transact_by_version", by_version),
        mock.patch.object(dead_claims, "LEASE_S", 1),
        mock.patch.object(claims, "time", SimpleNamespace(monotonic=lambda: 0.0)),
        mock.patch.object(delivery, "Holder", standing),
        mock.patch.object(ends, "transact_by_version", by_version),
        mock.patch.object(ends, "Commit", Deletion),
        mock.patch.object(ends, "protobuf_of_key", lambda key: key),
        mock.patch.object(
            ends, "apply_together", lambda clients, commit: delete_multi(commit.keys)
        ),
        mock.patch.object(ndb, "delete_multi", delete_multi),
    ):
        yield


def acting(lane: Lane, act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(clients: Any) -> Any:
        clients.new_owner = clients.new_id
        clients.datastore = SimpleNamespace(project="demo-memory", database=None, namespace=None)
        clients.processes = SimpleNamespace(is_dead=lambda owner: False)
        clients.heart = NoHeart()
        clients.task_paths = {each.path: each for each in (work, lane.task)}
        return act(clients)

    return run


def search_of(lane: Lane, fault: str) -> Search:
    """Return the search of an adder of two tasks, another one of one, and all their hints.

    In pairs there are two tasks: with three the search takes minutes.
    """

    def adder(name: str, texts: str) -> Process:
        many = [work.bind(text) for text in texts]
        act = acting(lane, lambda clients: all(work.enqueue_many(clients, many, lane=lane("k"))))
        return Process(name, act, NOON)

    def deliver(clients: Any, hint: Any) -> None:
        args = lane.task.read(hint.body)
        acting(lane, lambda clients: delivery.deliver(lane, clients, args))(clients)

    first = "ab" if lane.order or IS_EXHAUSTIVE else "a"
    return Search([adder("first", first), adder("second", "c")], deliver, fault=fault)


def healed(search: Search, lane: Lane, end: End) -> End:
    """Return an end after the sweep has found what a crash has left."""
    for number in range(3):
        args = LaneArgs("searched|k", is_check=True, due_ms=number)
        act = acting(lane, lambda clients, args=args: delivery.deliver(lane, clients, args))
        end = search.heal(end, [Process(f"sweep {number}", act, NOON)])
    return end


def check(search: Search, lane: Lane, end: End) -> None:
    """Each added task has run once, or more often over a crash; nothing is left."""
    final = healed(search, lane, end) if end.is_broken else end
    left = [key for key in final.rows.facts if key.kind() in ("LaneTask", "LaneState")]
    assert not left, left
    done = {row.key.id(): row for row in _tasks_in(final.rows)}
    names = {"first": "ab" if lane.order or IS_EXHAUSTIVE else "a", "second": "c"}
    for name, texts in names.items():
        has_added = end.answers[name].what == "returned"
        for text in texts if has_added else "":
            assert done[text].ended >= 1, text
    for text, row in done.items():
        if not (end.is_broken and search.fault == CRASH):
            assert (row.begun, row.ended) == (1, 1), (text, row)
            assert row.at_work <= lane.limit, (text, row)
    assert not any(row.blamed for row in done.values()), done
    if lane.order and "a" in done and "b" in done:
        assert done["a"].turn < done["b"].turn, done


def explore(lane: Lane, fault: str) -> Search:
    search = search_of(lane, fault)
    for end in search.ends():
        try:
            check(search, lane, end)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{search.story(end)}") from error
    return search


# Searches of some seconds; `make soak` makes all, of which the last take minutes.
QUICK = [(ORDERED, ""), (PAIRED, ""), (ORDERED, FLUSH), (ORDERED, CRASH)]
CASES = [*QUICK, (PAIRED, FLUSH), (PAIRED, CRASH)] if IS_EXHAUSTIVE else QUICK
IDS = [f"{'order' if lane.order else 'pair'}-{fault or 'sound'}" for lane, fault in CASES]


@pytest.mark.timeout(3600 if IS_EXHAUSTIVE else 240)
@pytest.mark.parametrize(("lane", "fault"), CASES, ids=IDS)
def test_each_task_runs_once_in_every_interleaving(lane: Lane, fault: str) -> None:
    """K1, K2, K3, K4, K5, K8, K10: with all hints that the adders and the deliveries create."""
    assert explore(lane, fault).states > 50


# Planted bugs


def _claims_by_any_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery claims tasks although the state of their key has changed since it looked."""
    sound = claims._claim

    def claim(clients: Any, lane: Lane, lane_id: str, seen: Any, plan: Any) -> bool:
        return sound(clients, lane, lane_id, state_key(lane_id).get(), plan)

    monkeypatch.setattr(claims, "_claim", claim)


def _takes_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery claims tasks of a key without a state, which another one may have run."""
    monkeypatch.setattr(claims, "_existing", lambda tasks: tasks)


def _does_not_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a turn does not look for tasks that came meanwhile."""
    monkeypatch.setattr(delivery, "has_due_task", lambda *args: False)


def _unmarks_after_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint deletes the mark when it has looked, and not before."""
    sound, unmark = delivery.has_due_task, hints.unmark

    def look(clients: Any, lane: Lane, lane_id: str, claimed_ids: frozenset[str]) -> bool:
        has_task = sound(clients, lane, lane_id, claimed_ids)
        unmark(clients, lane_id)
        return has_task

    monkeypatch.setattr(delivery, "has_due_task", look)
    monkeypatch.setattr(hints, "unmark", lambda *args: None)


def _deletes_one_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim is given back with the deletion of one task, although more are done."""
    sound = claims.Holder.release

    def release(*args: Any, **options: Any) -> Any:
        return sound(*args, **{**options, "done": options["done"][:1]})

    monkeypatch.setattr(claims.Holder, "release", release)


def _blames_the_first_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A death counts against the first task that is there, although it may be done."""
    sound = states.remove_claim

    def remove_claim(lane_id: str, dead: Claim, write: Any) -> bool:
        return sound(
            lane_id, dead, lambda state, claim: write(state, replace(claim, is_careful=True))
        )

    monkeypatch.setattr(states, "remove_claim", remove_claim)


def _begins_the_second_before_the_first_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first task of a turn is deleted with those that follow, and blamed for their deaths."""
    sound = delivery._ClaimedRun._note_done

    def note_done(turn: Any, task: Any, work_s: float) -> None:
        begun, turn._begun = turn._begun, 2
        sound(turn, task, work_s)
        turn._begun = begun

    monkeypatch.setattr(delivery._ClaimedRun, "_note_done", note_done)


PLANTED = [
    (_claims_by_any_state, ""),
    (_takes_what_is_gone, ""),
    (_does_not_look_again, ""),
    (_unmarks_after_the_look, ""),
    (_deletes_one_that_is_done, ""),
    (_blames_the_first_one_left, CRASH),
    (_begins_the_second_before_the_first_is_deleted, CRASH),
]


@pytest.mark.parametrize(("plant", "fault"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_the_search_bites(
    plant: Callable[[pytest.MonkeyPatch], None], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one of its guards taken out, the same search fails."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        explore(ORDERED, fault)
