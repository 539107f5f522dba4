"""Events, values and times in a flow's row, without a store, and planted bugs."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.batches import Completed
from rollforward.flows import changes, sweep, wakes
from rollforward.flows.rows import events, values
from rollforward.flows.rows.entities import RUNNING, UNDOING, FlowRun, FlowValue, run_key
from rollforward.flows.rows.records import DONE, WAITING, StepRecord
from rollforward.flows.steps import waits
from rollforward.flows.steps.attempt import Noted
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
CLIENTS: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: NOON))


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with offline(), Memory():
        yield


def row_with(*names: str) -> FlowRun:
    """Return a flow that has had events, one a second."""
    row = FlowRun(args="{}", started_by="t", created=NOON.replace(tzinfo=None))
    for number, name in enumerate(names):
        events.add(row, name, f"{name}{number}", float(number), {"value": str(number)})
    return row


def ids(row: FlowRun) -> list[str]:
    return [event["id"] for event in row.events]


def test_a_step_takes_the_oldest_event_of_its_name_and_leaves_all_others() -> None:
    """W8: in their order, and gives it back as the oldest one."""
    row = row_with("other", "go", "go", "other")
    record = events.taken(row, StepRecord("wait", event="go"), 9.0)

    assert (record.state, record.event_id, record.event_at, record.value) == (DONE, "go1", 1.0, "1")
    assert ids(row) == ["other0", "go2", "other3"]

    events.give_back(row, record)
    assert ids(row) == ["go1", "other0", "go2", "other3"]
    assert events.taken(row, StepRecord("wait", event="go"), 9.0) == record


def test_an_event_that_has_come_counts_although_the_time_is_over() -> None:
    """W8: and without one the time decides, to the second."""
    waiting = StepRecord("wait", event="go", until=60.0)

    assert events.taken(row_with("go"), waiting, 61.0).event_id == "go0"
    for now_s, state in ((59.9, WAITING), (60.0, DONE)):
        late = events.taken(row_with("other"), waiting, now_s)
        assert (late.state, late.event_id) == (state, "")


def test_a_row_knows_the_newest_ids() -> None:
    """W9: an old event may come twice; a new one may not."""
    assert events.newest_ids({"a": "1", "b": "2", "c": "3"}, 2) == {"b": "2", "c": "3"}


@pytest.mark.parametrize(("text", "chunks"), [("€" * 100, 0), ("€" * 101, 1), ("x" * 900_001, 2)])
def test_a_value_is_in_rows_beyond_so_many_bytes(text: str, chunks: int) -> None:
    """W17: of bytes and not of characters; each chunk has a row of its own."""
    fields, rows = values.stored("probe|f1", "owner", text)

    assert (len(rows), fields.get("chunks", 0)) == (chunks, chunks)
    assert len({row.key for row in rows}) == chunks
    assert (values.joined(list(rows)) if rows else fields["value"]) == text


def test_who_waits_for_a_version_waits_since_the_first_refusal() -> None:
    """W20: until one goes on with it."""
    row = row_with()
    before = row.other_version_since = datetime.datetime(2030, 5, 1, 11)  # noqa: DTZ001
    Noted("a step is missing").sign(row, CLIENTS)
    assert (row.other_version, row.other_version_since) == ("a step is missing", before)

    Noted("").sign(row, CLIENTS)
    assert (row.other_version, row.other_version_since) == (None, None)
    Noted("a step is missing").sign(row, CLIENTS)
    assert row.other_version_since == NOON.replace(tzinfo=None)


def test_a_flow_that_has_a_task_has_some_seconds_more_than_that() -> None:
    """W11: one that has none, as it sleeps for long, is due when it wakes."""
    for days, grace in ((24, wakes.GRACE), (26, datetime.timedelta())):
        at = NOON + datetime.timedelta(days=days)
        assert wakes.due_at(CLIENTS, at) == (at + grace).replace(tzinfo=None)
    for past in (None, NOON, NOON - wakes.GRACE):
        assert wakes.due_at(CLIENTS, past) == (NOON + wakes.GRACE).replace(tzinfo=None)


def test_the_sweep_wakes_each_flow_by_its_own_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """W11: also beside one whose name begins alike; one of another app is left alone."""
    woken: list[tuple[str, str]] = []

    def task(name: str) -> Any:
        def enqueue_many(clients: object, many: list[wakes.FlowArgs]) -> None:
            woken.extend((name, args.run_id) for args in many)

        return SimpleNamespace(enqueue_many=enqueue_many)

    due = ["order|1", "order-2|1", "order|2", "stranger|1"]
    monkeypatch.setattr(sweep, "transact", lambda body: due)
    count = sweep._wake(CLIENTS, {name: task(name) for name in ("order", "order-2")}, [], NOON)

    assert woken == [("order", "order|1"), ("order", "order|2"), ("order-2", "order-2|1")]
    assert count == 3


def test_large_contents_of_two_events_of_one_transaction_share_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """W8: they are of two events, whatever their steps are called."""
    row = row_with("other")
    row.key = run_key("probe|f1")
    Memory.current.put(row)
    order: Any = SimpleNamespace(name="probe")
    monkeypatch.setattr(changes, "_transact", lambda clients, key, body, writes: body())

    def send() -> None:
        for number in range(2):
            changes.signal(CLIENTS, order, "f1", "go", str(number) * 1_000, f"e{number}")

    Memory.current.transact(send)
    contents = [
        stored["data"] for kind, stored, _ in Memory.current.facts.values() if kind is FlowValue
    ]

    assert sorted(contents) == [b'"%b"' % (digit * 1_000) for digit in (b"0", b"1")]


@pytest.mark.parametrize("state", [RUNNING, UNDOING])
def test_the_end_of_a_batch_wakes_no_flow_that_is_being_undone(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """W12: it is noted all the same."""
    row, woken = row_with(), list[str]()
    row.key, row.state = run_key("probe|f1"), state
    row.note("mails", StepRecord("batch", batch="f1|mails|0123"))
    monkeypatch.setattr(waits, "transact", lambda body: body())
    monkeypatch.setattr(waits, "pending", SimpleNamespace(get=lambda key: row, put=lambda row: 0))
    monkeypatch.setattr(ndb, "put_multi", lambda rows: None)
    wake = lambda clients, task, run_id: woken.append(run_id)  # noqa: E731
    monkeypatch.setattr(waits, "wake_after_commit", wake)
    ended = Completed("flow-probe", "f1|mails|0123", 1, "succeeded", 2, 2, 0, 0)
    task: Any = None
    waits.note_batch(CLIENTS, "probe", task, ended)

    assert row.records()["mails"].state == DONE
    assert (woken, row.due is not None) == (
        (["probe|f1"], True) if state == RUNNING else ([], False)
    )


BUGS = (
    Bug(
        *(waits, "note_batch", "if row.state == RUNNING:", "if True:"),
        *(test_the_end_of_a_batch_wakes_no_flow_that_is_being_undone, {"state": UNDOING}),
    ),
    Bug(
        *(changes, "signal", "-{len(row.event_ids)}", ""),
        test_large_contents_of_two_events_of_one_transaction_share_no_row,
    ),
    Bug(
        *(events, "taken", "*row.events[:number], ", ""),
        test_a_step_takes_the_oldest_event_of_its_name_and_leaves_all_others,
    ),
    Bug(
        *(events, "taken", "enumerate(row.events)", "reversed([*enumerate(row.events)])"),
        test_a_step_takes_the_oldest_event_of_its_name_and_leaves_all_others,
    ),
    Bug(
        *(events, "give_back", "[event, *row.events]", "[*row.events, event]"),
        test_a_step_takes_the_oldest_event_of_its_name_and_leaves_all_others,
    ),
    Bug(
        *(events, "taken", "now_s >= record.until", "now_s > record.until"),
        test_an_event_that_has_come_counts_although_the_time_is_over,
    ),
    Bug(
        *(events, "taken", "in enumerate(row.events)"),
        "in enumerate(() if 0 < record.until <= now_s else row.events)",
        test_an_event_that_has_come_counts_although_the_time_is_over,
    ),
    Bug(*(events, "newest_ids", "[-most:]", "[:most]"), test_a_row_knows_the_newest_ids),
    Bug(
        *(values, "stored", "len(data) <= MAX_INLINE_BYTES", "len(text) <= MAX_INLINE_BYTES"),
        *(test_a_value_is_in_rows_beyond_so_many_bytes, {"text": "€" * 101, "chunks": 1}),
    ),
    Bug(
        *(values, "stored", "value_key(run_id, owner, number)", "value_key(run_id, owner, 0)"),
        *(test_a_value_is_in_rows_beyond_so_many_bytes, {"text": "x" * 900_001, "chunks": 2}),
    ),
    Bug(
        *(Noted, "sign", "row.other_version_since or ", ""),
        test_who_waits_for_a_version_waits_since_the_first_refusal,
    ),
    Bug(
        *(wakes, "due_at", "at if at - now_utc > LONGEST_TASK else at + GRACE", "at + GRACE"),
        test_a_flow_that_has_a_task_has_some_seconds_more_than_that,
    ),
    Bug(
        *(sweep, "_wake", 'run_id.partition("|")[0] == name', "run_id.startswith(name)"),
        test_the_sweep_wakes_each_flow_by_its_own_task,
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """W8, W9, W11, W17, W20: each part of a row is for something."""
    bug.check_noticed(monkeypatch)
