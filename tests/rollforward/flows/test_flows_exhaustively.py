"""A wait in every interleaving of its event, its time-out, a cancellation and two deliveries.

The real code, run one call at a time. Each search comes to its end: no state is left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore import transactions
from rollforward.datastore.transactions import Transaction
from rollforward.flows import FlowEndedError, Steps, changes, flow
from rollforward.flows.rows.entities import CANCELLED, RUNNING, SUCCEEDED, FlowRun, run_key
from rollforward.flows.steps import delivery
from rollforward.flows.steps.attempt import FlowAttempt
from rollforward.flows.wakes import FlowArgs
from rollforward.runtime.sharing.shared_transaction import SharedBody
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.memory_datastore import Memory
from tests.infra.model_checking import stepwise
from tests.infra.model_checking.model_checker import CRASH, REPLY_LOST, UNHEARD, End, Search
from tests.infra.model_checking.stepwise import NOON, ROWS, Call, Process, Run

TIMEOUT_S = 3600.0
LATER = NOON + datetime.timedelta(hours=2)
LAST = NOON + datetime.timedelta(days=1)
FAULTS = ("", CRASH, REPLY_LOST, UNHEARD)


class Outcome(ndb.Model):
    """How often a wait had this outcome, less how often that was undone."""

    noted = ndb.IntegerProperty(default=0)
    undone = ndb.IntegerProperty(default=0)


def note(outcome: str) -> None:
    row = ndb.Key(Outcome, outcome).get() or Outcome(id=outcome)
    row.noted += 1
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


def transact(body: Callable[[], Any]) -> Any:
    """Run a body as one step, again if its reply was lost, under one id."""
    run = Run.current
    transaction = Transaction(id=f"{run.process.name}-{run.used}")

    def inside() -> Any:
        transaction.on_retry(rpc_errors.ServiceUnavailable("made by the search"))
        with transactions.inside(transaction):
            return body()

    for _ in range(4):
        try:
            return run.ask(Call(ROWS, "transaction"), inside)
        except rpc_errors.ServiceUnavailable as error:
            lost = error
    raise lost


def transact_shared(clients: Any, body: SharedBody[Any]) -> Any:
    return transact(lambda: body.run(0))


def transact_around(
    clients: Any, key: Any, read: Callable[[], tuple[Any, Any]], body: Callable[[], Any]
) -> tuple[Any, None]:
    """Run a body and write a row by its version, as one step."""
    for _ in range(4):
        row, version = read()

        def inside(row: Any = row, version: Any = version) -> Any:
            if Memory.current.facts[row.key][2] != version:
                raise rpc_errors.Aborted("made by the search")
            result = body()
            row.put()
            return result

        try:
            return transact(inside), None
        except rpc_errors.Aborted as error:
            lost = error
    raise lost


def write(attempt: FlowAttempt, values: Any, *, is_alone: bool) -> None:
    """Write the row of a delivery; its next version is known by reading it."""
    stepwise.commit_unchanged(None, puts=[(attempt.row, attempt._version)])
    attempt._version = None


def acting(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(clients: Any) -> Any:
        clients.new_owner = clients.new_id
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
        mock.patch("rollforward.flows.steps.attempt.read_versions", stepwise._read_versions),
        mock.patch("rollforward.flows.steps.attempt.pause_before_retry"),
        mock.patch("rollforward.flows.steps.attempt.transact_around", transact_around),
        mock.patch("rollforward.flows.changes.transact_shared", transact_shared),
        mock.patch.object(FlowAttempt, "_write", write),
        mock.patch.object(ndb, "put_multi", lambda rows: [row.put() for row in rows]),
    ):
        yield


def process(name: str, act: Callable[[Any], Any], at: datetime.datetime = NOON) -> Process:
    return Process(name, acting(act), at, follows="" if name == "start" else "start")


def has_two_deliveries(others: tuple[str, ...], fault: str) -> bool:
    """Return whether a search takes minutes: with both others and a fault it would take hours."""
    return len(others) == 1 or (IS_EXHAUSTIVE and not fault)


def processes(others: tuple[str, ...], fault: str) -> list[Process]:
    """Return two deliveries, one of them when the time is over, and all else that happens."""
    known = {
        "send": process("send", send),
        "cancel": process("cancel", cancel),
    }
    deliveries = [process("early", deliver), process("late", deliver, LATER)]
    if not has_two_deliveries(others, fault):
        del deliveries[1]  # The sweep comes late, too.
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
    """The sweep will find a flow that is to be undone, or whose event is there."""
    if row is not None and not row.has_ended:
        wait = row.step("go")
        is_waiting = wait is not None and not wait.has_ended and not row.events
        assert row.due is not None or (is_waiting and row.state == RUNNING), row


def _check_outcomes(row: FlowRun, outcomes: list[Any]) -> None:
    """One outcome for ever; its effect is there once, or is undone; its event is at one place."""
    wait = row.step("go")
    has_event = wait is not None and bool(wait.event_id)
    assert len(outcomes) <= 1, outcomes
    is_cancelled = row.state == CANCELLED
    for outcome in outcomes:
        assert (outcome.noted, outcome.undone) == (1, int(is_cancelled)), outcome
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


# Searches of some seconds; `make soak` makes all, of which the last takes minutes.
QUICK = [(("send",), ""), (("send",), CRASH), (("cancel",), ""), (("cancel",), CRASH)]
ALL_CASES = [
    (others, fault) for others in (("send",), ("cancel",), ("send", "cancel")) for fault in FAULTS
]


@pytest.mark.timeout(3600 if IS_EXHAUSTIVE else 240)
@pytest.mark.parametrize(
    ("others", "fault"), ALL_CASES if IS_EXHAUSTIVE else [*QUICK, (("send", "cancel"), "")]
)
def test_a_wait_has_one_outcome_in_every_interleaving(others: tuple[str, ...], fault: str) -> None:
    """W9, W8, W14: the event is taken or unread, never both; a cancellation undoes what was."""
    search = Search(processes(others, fault), lambda clients, message: None, fault=fault)
    ends = set()
    for end in search.ends():
        try:
            ends.add(check(search, end))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{search.story(end)}") from error
    assert search.states > 50
    if has_two_deliveries(others, fault) or not fault:
        assert ('succeeded "time-out"' in ends) == has_two_deliveries(others, fault)
    assert ('succeeded "event"' in ends) == ("send" in others)
    assert any(end.startswith("cancelled") for end in ends) == ("cancel" in others)
