"""A wait in every interleaving of its event, its time-out, a cancellation and two deliveries.

The real code, run one call at a time. Each search comes to its end: no state is left out. With an
event, a cancellation, two deliveries and a crash these are 3,500 states, and with a lost reply
28,000. Places of a delivery are compared by what its frames hold, and a compare-and-set that has
lost its race is made at once; both are argued in the model checker, and tested below by a search
that does neither.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore import transactions
from rollforward.datastore.transactions import Transaction
from rollforward.flows import Flow, FlowEndedError, Steps, changes, flow
from rollforward.flows.rows import events
from rollforward.flows.rows.entities import CANCELLED, RUNNING, SUCCEEDED, UNDOING, FlowRun, run_key
from rollforward.flows.rows.records import StepRecord
from rollforward.flows.steps import calls, delivery, waits
from rollforward.flows.steps.attempt import FlowAttempt
from rollforward.flows.wakes import GRACE, FlowArgs
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.sharing.shared_transaction import SharedBody
from rollforward.tasks.declaration import Task
from tests.infra.memory_datastore import Memory
from tests.infra.model_checking import stepwise
from tests.infra.model_checking.model_checker import CRASH, REPLY_LOST, UNHEARD, End, Search
from tests.infra.model_checking.stepwise import NOON, ROWS, Call, Process, Run
from tests.infra.runs import sampling

TIMEOUT_S = 3600.0
LATER = NOON + datetime.timedelta(hours=2)
LAST = NOON + datetime.timedelta(days=1)
SOON = [naive_utc(at + GRACE) for at in (NOON, LATER)]
CONSTANTS = (Flow, Task)
FAULTS = ("", CRASH, REPLY_LOST, UNHEARD)


class Outcome(ndb.Model):
    """How often a wait had this outcome, less how often that was undone."""

    noted = ndb.IntegerProperty(default=0)
    unwanted = ndb.IntegerProperty(default=0)  # While its flow was being undone.
    undone = ndb.IntegerProperty(default=0)


def note(outcome: str) -> None:
    row = ndb.Key(Outcome, outcome).get() or Outcome(id=outcome)
    row.noted += 1
    row.unwanted += run_key(RUN_ID).get().state == UNDOING
    row.put()


def undo(outcome: str) -> None:
    row = ndb.Key(Outcome, outcome).get()
    row.undone += 1
    row.put()


@flow("searched")
def searched(step: Steps) -> str:
    """Wait for an event, and note what came."""
    event = step.wait_for("go", timeout_s=TIMEOUT_S)
    outcome = "time-out" if event is None else "event"
    step.commit("note", note, outcome)
    step.undo_commit("undo", undo, outcome)
    return outcome


RUN_ID = "searched|f"


def transact(body: Callable[[], Any], expected: tuple[Any, ...] = ()) -> Any:
    """Run a body as one step, again if its reply was lost, under one id."""
    run = Run.current
    transaction = Transaction(id=f"of {run.process.name}")  # Each commits one that keeps its id.

    def inside() -> Any:
        transaction.on_retry(rpc_errors.ServiceUnavailable("made by the search"))
        with transactions.inside(transaction):
            result = body()
            transaction.before_commit()
            return result

    for _ in range(4):
        try:
            return run.ask(Call(ROWS, "transaction", expected), inside)
        except rpc_errors.ServiceUnavailable as error:
            lost = error
    raise lost


def transact_shared(clients: Any, body: SharedBody[Any]) -> Any:
    return transact(lambda: body.run(body.reads(0)))


def transact_around(
    clients: Any, key: Any, read: Callable[[], tuple[Any, Any]], body: Callable[[], Any]
) -> tuple[Any, Any]:
    """Run a body and write a row by its version, as one step."""
    for _ in range(4):
        answer = _around(*read(), body)
        if answer is not None:
            return answer
    raise rpc_errors.Aborted("made by the search")


def _around(row: Any, version: Any, body: Callable[[], Any]) -> tuple[Any, Any] | None:
    def inside() -> tuple[Any, Any]:
        if Memory.current.facts[row.key][2] != version:
            raise rpc_errors.Aborted("made by the search")
        result = body()
        row.put()
        return result, Memory.current.facts[row.key][2]

    try:
        return transact(inside, (row.key, version))
    except rpc_errors.Aborted:
        return None


def write(attempt: FlowAttempt, values: Any, *, is_alone: bool) -> None:
    """Write the row of a delivery; the number of a write that is refused is free again."""
    row, version = attempt.row, attempt._version

    def effect(memory: Memory) -> str:
        if memory.facts[row.key][2] != version:
            raise rpc_errors.FailedPrecondition("made by the search")
        memory.put(row)
        return memory.facts[row.key][2]

    try:
        attempt._version = stepwise.rows("commit", effect, (row.key, version))
    except rpc_errors.FailedPrecondition:
        attempt._writes -= 1
        raise


READ = FlowAttempt._read


def read(attempt: FlowAttempt, **options: Any) -> bool:
    """Read the row of a delivery; what it knew before plays no part any more."""
    with contextlib.suppress(AttributeError):
        del attempt.row
    return READ(attempt, **options)


def read_together(clients: Any, key: Any) -> Any:
    return stepwise._read_versions(None, [key])[0]


def insert(clients: Any, row: FlowRun) -> None:
    stepwise._insert_all(None, [row])


def acting(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(clients: Any) -> Any:
        clients.new_owner = clients.new_id = lambda: Run.current.process.name
        clients.processes = SimpleNamespace(is_dead=lambda owner: False)
        return act(clients)

    return run


def deliver(clients: Any) -> None:
    delivery.deliver(searched, clients, FlowArgs(RUN_ID))


def send(clients: Any) -> bool | None:
    try:
        return changes.signal(clients, searched, "f", "go", "here", "e1")
    except FlowEndedError:
        return None


def start(clients: Any) -> bool:
    return changes.start(clients, searched, "f", "{}")


def cancel(clients: Any) -> bool:
    return changes.cancel(clients, searched, "f")


@pytest.fixture(autouse=True)
def in_steps() -> Iterator[None]:
    """Let the Datastore of flows be the search's."""
    with (
        stepwise.stepwise(),
        mock.patch("rollforward.flows.changes.insert_together", insert),
        mock.patch("rollforward.flows.changes.read_versions", stepwise._read_versions),
        mock.patch("rollforward.datastore.transactions.pause_before_retry"),
        mock.patch("rollforward.flows.changes.wake"),
        mock.patch("rollforward.flows.steps.attempt.read_together", read_together),
        mock.patch("rollforward.flows.steps.attempt.pause_before_retry"),
        mock.patch("rollforward.flows.steps.attempt.transact_around", transact_around),
        mock.patch("rollforward.flows.changes.transact_shared", transact_shared),
        mock.patch.object(FlowAttempt, "_read", read),
        mock.patch.object(FlowAttempt, "_write", write),
    ):
        yield


def process(name: str, act: Callable[[Any], Any], at: datetime.datetime = NOON) -> Process:
    follows = "" if name == "start" else "start"
    return Process(name, acting(act), at, follows=follows, constants=CONSTANTS)


def processes(others: tuple[str, ...]) -> list[Process]:
    """Return two deliveries, one of them when the time is over, and all else that happens."""
    known = {
        "send": process("send", send),
        "cancel": process("cancel", cancel),
    }
    deliveries = [process("early", deliver), process("late", deliver, LATER)]
    return [process("start", start), *deliveries, *(known[name] for name in others)]


def check(search: Search, end: End) -> str:
    """Check an end after the sweep has woken the flow once more; return how it ended."""
    later = [
        Process(f"sweep {n}", acting(deliver), LAST + n * datetime.timedelta(days=1))
        for n in (0, 1)
    ]
    _check_woken(end.rows.get(run_key(RUN_ID)))
    healed = end
    for sweep in later:
        healed = search.heal(healed, [sweep])
    row = healed.rows.get(run_key(RUN_ID))
    if row is None:
        return "not started"
    assert row.state in (SUCCEEDED, CANCELLED), row
    outcomes = [healed.rows.get(key) for key in healed.rows.facts if key.kind() == "Outcome"]
    _check_outcomes(row, outcomes)
    _check_answers(row, end)
    return f"{row.state} {row.result}"


def _check_woken(row: FlowRun | None) -> None:
    """The sweep finds a flow that is to be undone, or whose event is there, and not in an hour."""
    if row is not None and row.has_ended:
        assert row.due is None, row
    elif row is not None:
        wait = row.step("go")
        is_waiting = wait is not None and not wait.has_ended and not row.events
        assert row.due in SOON or (is_waiting and row.state == RUNNING and row.due), row


def _check_outcomes(row: FlowRun, outcomes: list[Any]) -> None:
    """One outcome for ever; its effect is there once, or is undone; its event is at one place."""
    wait = row.step("go")
    has_event = wait is not None and bool(wait.event_id)
    assert len(outcomes) <= 1, outcomes
    is_cancelled = row.state == CANCELLED
    for outcome in outcomes:
        assert (outcome.noted, outcome.undone) == (1, int(is_cancelled)), outcome
        assert outcome.unwanted == 0, outcome
        assert outcome.key.id() == ("event" if has_event else "time-out")
    if not is_cancelled:
        assert row.result == ('"event"' if has_event else '"time-out"')
        assert outcomes
    places = len(row.events) + has_event
    assert places == len(row.event_ids), row


def _check_answers(row: FlowRun, end: End) -> None:
    """Who sent an event or cancelled was told the truth."""
    sent = end.answers.get("send")
    if sent is not None and sent.what == "returned":
        assert len(row.event_ids) == int(sent.arguments[0] is True), sent
    cancelled = end.answers.get("cancel")
    if cancelled is not None and cancelled.what == "returned":
        assert cancelled.arguments[0] == (row.state == CANCELLED), cancelled


def searched_ends(search: Search) -> set[str]:
    """Check all ends of a search; return how the flow ended."""
    ends = set()
    for end in search.ends():
        try:
            ends.add(check(search, end))
        except Exception as error:
            raise AssertionError(f"{error!r}\n{search.story(end)}") from error
    return ends


def search_for(others: tuple[str, ...], fault: str) -> Search:
    return Search(
        processes(others), lambda clients, message: None, fault=fault, versions_recur=False
    )


BOTH = ("send", "cancel")
# What a run without `long` searches: a second or some for each.
QUICK = [(("send",), ""), (("cancel",), REPLY_LOST), (BOTH, CRASH)]
LONG = [
    (others, fault)
    for others in (("send",), ("cancel",), BOTH)
    for fault in FAULTS
    if (others, fault) not in QUICK
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("others", "fault"),
    [*QUICK, *(pytest.param(*case, marks=sampling.long) for case in LONG)],
)
def test_a_wait_has_one_outcome_in_every_interleaving(others: tuple[str, ...], fault: str) -> None:
    """W9, W8, W14: the event is taken or unread, never both; a cancellation undoes what was."""
    search = search_for(others, fault)
    ends = searched_ends(search)
    assert search.states > (2_000 if others == BOTH else 100)
    assert 'succeeded "time-out"' in ends
    assert ('succeeded "event"' in ends) == ("send" in others)
    assert any(end.startswith("cancelled") for end in ends) == ("cancel" in others)


# What the search leaves out


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("others", "fault"),
    [(("cancel",), CRASH), pytest.param(("send",), CRASH, marks=sampling.long)],
)
def test_a_search_by_histories_finds_the_same_ends(others: tuple[str, ...], fault: str) -> None:
    """A place told apart by all answers that led there, each step at each moment: nothing more."""
    by_history = [replace(process, constants=()) for process in processes(others)]
    whole = Search(by_history, lambda clients, message: None, fault=fault)
    short = search_for(others, fault)

    assert {_said(end) for end in whole.ends()} == {_said(end) for end in short.ends()}
    assert whole.states > short.states


def _said(end: End) -> tuple[object, ...]:
    """Return all that is stored and was answered at an end."""
    return end.rows.state(), tuple(sorted(end.answers.items())), end.is_broken


# Planted bugs


def _takes_a_cancelled_flow_for_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "check_running", lambda row: None)


def _commits_after_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_check_wanted", lambda row, call: None)


def _writes_over_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_blindly(attempt: FlowAttempt, values: Any, *, is_alone: bool) -> None:
        attempt.row.put()
        attempt._version = None

    monkeypatch.setattr(FlowAttempt, "_write", write_blindly)


def _knows_no_end_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = FlowAttempt.transact

    def transact_blindly(attempt: FlowAttempt, body: Callable[[FlowRun], Any]) -> Any:
        def blind(row: FlowRun) -> Any:
            steps, row.steps = row.steps, {"go": row.steps["go"]}
            try:
                return body(row)
            finally:
                row.steps = {**steps, **row.steps}

        return sound(attempt, blind)

    monkeypatch.setattr(FlowAttempt, "transact", transact_blindly)


def _leaves_the_event_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = events.taken

    def taken(row: FlowRun, record: StepRecord, now_s: float) -> StepRecord:
        unread = row.events
        record = sound(row, record, now_s)
        row.events = unread
        return record

    monkeypatch.setattr(waits, "taken", taken)


def _wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "is_expected", lambda row, name: False)


def _goes_on_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowAttempt, "_take", lambda attempt, row: row)


Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: list[tuple[Plant, tuple[str, ...], str]] = [
    (_takes_a_cancelled_flow_for_running, ("cancel",), ""),
    (_commits_after_a_cancellation, ("cancel",), ""),
    (_writes_over_others, ("send",), ""),
    (_knows_no_end_of_a_step, ("send",), ""),
    (_leaves_the_event_that_it_takes, ("send",), ""),
    (_wakes_nobody, ("send",), CRASH),
    (_goes_on_after_the_end, ("cancel",), ""),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "others", "fault"), PLANTED, ids=[plant.__name__ for plant, *_ in PLANTED]
)
def test_the_search_finds_a_planted_bug(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, others: tuple[str, ...], fault: str
) -> None:
    """With one of its guards taken out, the same search fails."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        searched_ends(search_for(others, fault))
