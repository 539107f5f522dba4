"""Calls of a key in every interleaving of two callers and the deliveries that they cause.

The real code, run one call at a time. Each search comes to its end: no state is left out. The key
is a unique one, whose windows end at once, so no search depends on a clock. A debounced one takes
the same way once its window has ended.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore import transactions
from rollforward.datastore.transactions import Transaction
from rollforward.lanes import Call as LaneCall
from rollforward.lanes import Gathered, hints
from rollforward.lanes.gathered import claiming, running
from rollforward.lanes.gathered.timing import Unique
from rollforward.lanes.gathered.window import Window
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows import states
from rollforward.lanes.rows.entities import LaneTask, place_of, state_key
from rollforward.runtime.messages import Message
from rollforward.runtime.process.heartbeats import NoHeart
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.memory_datastore import Memory
from tests.infra.model_checking import stepwise
from tests.infra.model_checking.model_checker import CRASH, FLUSH, End, Search
from tests.infra.model_checking.stepwise import NOON, ROWS, Call, Process, Run, rows
from tests.infra.runs import sampling
from tests.rollforward.lanes.gathered.mailroom import Note

KEY = "searched|k"


class SearchedRun(ndb.Model):
    """A run of the function: its calls, how often it began and ended, and if it had company."""

    texts = ndb.TextProperty()
    begun = ndb.IntegerProperty(default=0)
    ended = ndb.IntegerProperty(default=0)
    had_company = ndb.BooleanProperty(default=False)


def work(clients: Any, key: str, calls: Sequence[LaneCall[Note]]) -> None:
    """Write down that a run begins, and that it ends."""
    name, texts = ",".join(call.id for call in calls), ",".join(call.args.text for call in calls)

    def begin(memory: Memory) -> None:
        at_work = [row for row in runs_in(memory) if row.begun > row.ended]
        row = memory.get(ndb.Key(SearchedRun, name)) or SearchedRun(id=name, texts=texts)
        row.begun += 1
        row.had_company = row.had_company or bool(at_work)
        memory.put(row)

    def end(memory: Memory) -> None:
        row = memory.get(ndb.Key(SearchedRun, name))
        row.ended += 1
        memory.put(row)

    rows("begin", begin)
    rows("end", end)


def runs_in(memory: Memory) -> list[Any]:
    return [memory.get(key) for key in list(memory.facts) if key.kind() == "SearchedRun"]


def gathered(*, while_running: bool) -> Gathered[Note]:
    def function(key: str, calls: Sequence[LaneCall[Note]]) -> None: ...

    lane: Gathered[Note] = Gathered("searched", Unique(while_running), function)
    lane.work = work
    return lane


class Waiting:
    """The rows of a key, as the queries of it return them."""

    def __init__(self, lane_id: str, *, is_reversed: bool = False) -> None:
        self.is_reversed = is_reversed

    def _rows(self, limit: int, *, keys_only: bool) -> list[Any]:
        def effect(memory: Memory) -> list[Any]:
            keys = sorted(key for key in memory.facts if key.kind() == "LaneTask")
            keys = (keys[::-1] if self.is_reversed else keys)[:limit]
            return keys if keys_only else [memory.get(key) for key in keys]

        return rows("query", effect)  # type: ignore[no-any-return]

    def get(self, *, keys_only: bool) -> Any:
        return next(iter(self._rows(1, keys_only=keys_only)), None)

    def iter(self, *, limit: int) -> list[Any]:
        return self._rows(limit, keys_only=False)


def next_place(clients: Any, lane_id: str, *, is_ordered: bool) -> int:
    key = Waiting(lane_id, is_reversed=True).get(keys_only=True)
    now = place_of(clients.clock.now())
    return now if key is None else max(now, int(key.id()[len(lane_id) + 1 :][:16]) + 1)


def transact(body: Callable[[], Any]) -> Any:
    """Run a body, and what its hooks write last, as one step; again if its reply was lost."""
    run = Run.current
    transaction = Transaction(id=f"{run.process.name:x<12}-{run.used}")

    def inside() -> Any:
        with transactions.inside(transaction):
            return transactions.run_body(body, transaction)

    for _ in range(4):
        try:
            result = run.ask(Call(ROWS, "transaction"), inside)
        except rpc_errors.ServiceUnavailable as error:
            lost = transaction.doubt = error
            transaction.on_retry(error)
        else:
            return result
    raise lost


def by_version(clients: Any, body: Callable[[], Any], **options: Any) -> Any:
    return transact(body)


def transact_call(body: Callable[[], Any]) -> Any:
    """Add a call in a transaction, and create its hint: a body that was run before has no hooks."""
    is_added = transact(body)
    if is_added:
        names = inspect.getclosurevars(body).nonlocals
        hints.hint_later(names["clients"], names["self"].task, [KEY])
    return is_added


def message(
    clients: Any,
    task: Any,
    args: LaneArgs,
    at: Any,
    name: tuple[str | int, ...] | None = None,
) -> Message:
    """Return a hint of its own: the search takes those with the same body for the same one."""
    return task.message(replace(args, early=int(clients.new_id()[:6], 16)))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def in_steps() -> Iterator[None]:
    """Let the Datastore of lanes be the search's."""
    lanes = "rollforward.lanes"
    with (
        stepwise.stepwise(),
        mock.patch(f"{lanes}.adding._next_place", next_place),
        mock.patch(f"{lanes}.adding.commit_of_puts", lambda client, puts: puts),
        mock.patch(
            f"{lanes}.adding.apply_together",
            lambda clients, puts: stepwise._insert_all(None, [row for row, _ in puts]),
        ),
        mock.patch(f"{lanes}.adding.current.put", lambda row: row.put()),
        mock.patch.object(hints, "_message", message),
        mock.patch.object(hints, "create_later", lambda clients, m: clients.tasks.create_many(m)),
        mock.patch.object(claiming, "waiting", Waiting),
        mock.patch.object(claiming, "last_of", lambda lane: Waiting(lane, is_reversed=True)),
        mock.patch.object(claiming, "transact", transact),
        mock.patch.object(claiming, "transact_by_version", by_version),
        mock.patch.object(states, "transact_by_version", by_version),
        mock.patch.object(running, "transact_by_version", by_version),
        mock.patch(f"{lanes}.gathered.declaration.transact", transact_call),
    ):
        yield


def acting(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(clients: Any) -> Any:
        clients.new_owner = clients.new_id
        clients.datastore = SimpleNamespace(project="demo-memory", database=None, namespace=None)
        clients.processes = SimpleNamespace(is_dead=lambda owner: False)
        clients.heart = NoHeart()
        return act(clients)

    return run


def caller(lane: Gathered[Note], text: str) -> Process:
    return Process(text, acting(lambda clients: lane.call(clients, "k", Note(text))), NOON)


def search_of(lane: Gathered[Note], texts: str, fault: str, *more: Process) -> Search:
    def deliver(clients: Any, task: Message) -> None:
        acting(lambda clients: running.deliver(lane, clients, lane.task.read(task.body)))(clients)

    return Search([*(caller(lane, text) for text in texts), *more], deliver, fault=fault)


def check(search: Search, lane: Gathered[Note], end: End, fault: str) -> tuple[str, ...]:
    """Check an end, after the sweep if something broke; return the texts of its runs."""
    told = {name: call for name, call in end.answers.items() if len(name) == 1}
    for number in range(4 if end.is_broken else 0):
        sweep = Process(
            f"sweep {number}",
            acting(lambda clients: running.deliver(lane, clients, LaneArgs(KEY, is_check=True))),
        )
        end = search.heal(end, [sweep])
    memory = end.rows
    runs = runs_in(memory)
    left = [key for key in memory.facts if key.kind() in ("LaneTask", "LaneState")]
    assert not left, left
    texts = [text for row in runs for text in row.texts.split(",")]
    assert len(set(texts)) == len(texts), runs  # The windows are disjoint.
    for name, call in told.items():
        if call.what == "returned":
            assert (name in texts) == (call.arguments[0] is True), (call, runs)
    assert not any(row.had_company for row in runs) or fault == CRASH, runs
    if not end.is_broken or fault == FLUSH:
        assert all(row.begun == row.ended == 1 for row in runs), runs
    return tuple(sorted(row.texts for row in runs))


def explore(lane: Gathered[Note], texts: str, fault: str) -> set[tuple[str, ...]]:
    search = search_of(lane, texts, fault)
    outcomes = set()
    for end in search.ends():
        try:
            outcomes.add(check(search, lane, end, fault))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{search.story(end)}") from error
    assert search.states > 50
    return outcomes


FAULTS = ("", FLUSH, CRASH)


@pytest.mark.timeout(3600 if IS_EXHAUSTIVE else 240)
@pytest.mark.parametrize("while_running", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_two_calls_are_in_one_window_each_in_every_interleaving(
    fault: str, *, while_running: bool
) -> None:
    """R1, R2, R9: one run at a time, each call in one window, and answers that are true."""
    outcomes = explore(gathered(while_running=while_running), "ab", fault)
    assert ("a", "b") in outcomes
    assert ("a,b",) in outcomes or ("b,a",) in outcomes
    assert (("a",) in outcomes) == (while_running or fault == CRASH)


class DroppedForNothingError(Exception):
    """A call was dropped, and no run is at work."""


def answers_truly(sound: Callable[..., bool]) -> Callable[..., bool]:
    """Return the body of a call; it fails if it drops a call although no run is at work."""

    def call(self: Any, clients: Any, lane_id: str, message: Any) -> bool:
        answer = sound(self, clients, lane_id, message)
        memory = Memory.current
        if answer is False:
            window = Window.of(memory.get(state_key(lane_id)))
            if not any(key in memory.facts for key in window.keys(lane_id)):
                raise DroppedForNothingError
        return answer

    return call


def explore_a_late_delivery(lane: Gathered[Note]) -> None:
    """Let two callers and a delivery that comes twice meet in every interleaving."""
    late = acting(lambda clients: running.deliver(lane, clients, LaneArgs(KEY)))
    search = search_of(lane, "ab", "", Process("late", late, NOON))
    for end in search.ends():
        errors = [call for call in end.answers.values() if call.what == "raised"]
        assert not any("DroppedForNothing" in repr(call) for call in errors), search.story(end)


@sampling.minute
def test_a_call_is_dropped_only_for_a_run_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2: a delivery that comes late claims nothing, not even for a moment."""
    truly = answers_truly(Gathered._call_in_transaction)
    monkeypatch.setattr(Gathered, "_call_in_transaction", truly)
    explore_a_late_delivery(gathered(while_running=True))


# Planted bugs


def _claims_by_any_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery claims a key although its state has changed since it looked."""
    sound = claiming._claim

    def claim(clients: Any, lane: Any, lane_id: str, seen: Any, plan: Any) -> bool:
        return sound(clients, lane, lane_id, state_key(lane_id).get(), plan)

    monkeypatch.setattr(claiming, "_claim", claim)


def _takes_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery claims a key without a state, whose calls another one may have run meanwhile."""
    sound = ndb.get_multi

    def get_multi(keys: Sequence[Any]) -> list[Any]:
        return [
            row or LaneTask(key=key) if key.kind() == "LaneTask" else row
            for key, row in zip(keys, sound(keys), strict=True)
        ]

    monkeypatch.setattr(ndb, "get_multi", get_multi)


def _does_not_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a run does not look for the next window."""
    monkeypatch.setattr(running, "_continue", lambda *args: None)


@pytest.mark.parametrize("plant", [_claims_by_any_state, _takes_what_is_gone, _does_not_look_again])
def test_the_search_bites(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one of its guards taken out, the same search fails."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        explore(gathered(while_running=False), "ab", "")


def test_the_search_of_late_deliveries_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a claim whose rows are not looked at, a call is dropped for nothing."""
    truly = answers_truly(Gathered._call_in_transaction)
    monkeypatch.setattr(Gathered, "_call_in_transaction", truly)
    _takes_what_is_gone(monkeypatch)
    with pytest.raises(AssertionError):
        explore_a_late_delivery(gathered(while_running=True))
