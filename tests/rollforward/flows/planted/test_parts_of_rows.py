"""Events, values and times in a flow's row, without a store, and planted bugs."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.batches import Completed
from rollforward.flows import changes, inspection, sweep, turns, wakes
from rollforward.flows.errors import Suspended
from rollforward.flows.rows import events, values
from rollforward.flows.rows.entities import RUNNING, UNDOING, FlowRun, FlowValue, run_key
from rollforward.flows.rows.records import DONE, FAILED, WAITING, StepRecord
from rollforward.flows.steps import calls, waits
from rollforward.flows.steps.attempt import FlowAttempt, VersionNote
from rollforward.flows.wakes import FlowArgs
from rollforward.tasks.errors import Retry, Unavailable
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
LONG_AGO = datetime.datetime(2030, 4, 1)  # noqa: DTZ001
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

    events.restore(row, record)
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
    assert events.last_ids({"a": "1", "b": "2", "c": "3"}, 2) == {"b": "2", "c": "3"}


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
    VersionNote("a step is missing").sign(row, CLIENTS)
    assert (row.other_version, row.other_version_since) == ("a step is missing", before)

    VersionNote("").sign(row, CLIENTS)
    assert (row.other_version, row.other_version_since) == (None, None)
    VersionNote("a step is missing").sign(row, CLIENTS)
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
        def enqueue_many(clients: object, many: list[FlowArgs]) -> None:
            woken.extend((name, args.run_id) for args in many)

        return SimpleNamespace(enqueue_many=enqueue_many)

    due = [FlowArgs(run_id) for run_id in ("order|1", "order-2|1", "order|2", "stranger|1")]
    monkeypatch.setattr(sweep, "transact", lambda body: due)
    count = sweep._wake(CLIENTS, {name: task(name) for name in ("order", "order-2")}, [], NOON)

    assert woken == [("order", "order|1"), ("order", "order|2"), ("order-2", "order-2|1")]
    assert count == 3


def test_the_sweep_wakes_all_that_is_due_also_beside_what_it_cannot_wake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """W11: in parts, of which one that fails stops no other."""
    tried: list[int] = []

    def wake(clients: object, tasks: object, part: list[int], now_utc: object) -> int:
        tried.extend(part)
        if broken & set(part):
            raise ValueError("made by the test")
        return len(part)

    count = 2 * sweep.MAX_PER_COMMIT + 1
    keys = SimpleNamespace(fetch=lambda limit, keys_only: list(range(count))[:limit])
    monkeypatch.setattr(sweep, "due_by", lambda now_utc: keys)
    monkeypatch.setattr(sweep, "_wake", wake)
    broken = set[int]()
    assert sweep.wake_due(CLIENTS, {}) == count
    broken.add(0)
    with pytest.raises(ValueError, match="made by the test"):
        sweep.wake_due(CLIENTS, {})
    assert tried == list(range(count)) * 2


@pytest.mark.parametrize("error", [rpc_errors.Aborted("busy"), rpc_errors.NotFound("gone")])
def test_flows_that_deliveries_are_at_are_left_to_the_next_sweep(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """W11: another error is the sweep's own."""

    def lose(body: object) -> None:
        raise error

    monkeypatch.setattr(sweep, "transact", lose)
    if isinstance(error, rpc_errors.Aborted):
        assert sweep._wake(CLIENTS, {}, [], NOON) == 0
    else:
        with pytest.raises(rpc_errors.NotFound):
            sweep._wake(CLIENTS, {}, [], NOON)


def test_a_step_that_went_well_at_last_is_no_issue() -> None:
    """W2: its record keeps the error of the attempt before."""
    records = {
        "well": StepRecord("outside", began=1, ended=3, state=DONE, error="once"),
        "failed": StepRecord("outside", began=1, ended=3, state=FAILED, error="for good"),
        "retrying": StepRecord("outside", began=1, error="so far"),
        "waiting": StepRecord("sleep", began=1),
    }
    issues = inspection._issues(row_with(), records)
    assert [(issue.item, issue.outcome, issue.reason) for issue in issues] == [
        ("failed", "failed", "for good"),
        ("retrying", "retrying", "so far"),
    ]


def test_large_contents_of_two_events_of_one_transaction_share_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """W8: they are of two events, however many have come before."""
    row = row_with("other")
    row.key = run_key("probe|f1")
    row.event_ids = {f"old {number}": "t" for number in range(events.MAX_KNOWN_IDS)}
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
    wake = lambda clients, task, row: woken.append(row.key.id())  # noqa: E731
    monkeypatch.setattr(waits, "wake_after_commit", wake)
    ended = Completed("flow-probe", "f1|mails|0123", 1, "succeeded", 2, 2, 0, 0)
    task: Any = None
    waits.note_batch(CLIENTS, "probe", task, ended)

    assert row.records()["mails"].state == DONE
    assert (woken, row.due is not None) == (
        (["probe|f1"], True) if state == RUNNING else ([], False)
    )


# Steps


@pytest.mark.parametrize(
    ("error", "is_late", "pause_s", "attempts"),
    [
        (Retry("later", after_s=60), False, 60, 0),
        (Unavailable("away"), False, calls.UNAVAILABLE_FOR_S, 0),
        (KeyError("bug"), False, 7, 1),
        (Retry("later", after_s=60), True, None, 1),
        (Unavailable("away"), True, None, 1),
    ],
)
def test_a_step_pauses_as_it_says_until_its_time_is_up(
    error: Exception, is_late: bool, pause_s: float | None, attempts: int
) -> None:
    """W3: then each of its ends counts."""
    policy = SimpleNamespace(is_over=lambda failures, now_utc: is_late, pause_s=lambda failures: 7)
    call: Any = SimpleNamespace(name="call", kind="outside", is_undo=False, policy=policy)
    row = row_with()
    attempt: Any = SimpleNamespace(
        clients=CLIENTS,
        run_id="probe|f1",
        is_undoing=False,
        now_s=NOON.timestamp,
        continue_or_wait=lambda transition: transition(row),
        change=lambda transition, rows: transition(row),
    )
    calls._failed(attempt, call, StepRecord("outside", began=1.0, is_called=True), error)

    noted = row.records()["call"]
    assert noted.attempts == attempts
    if pause_s is None:
        assert noted.state == FAILED
    else:
        assert (noted.has_ended, noted.is_called) == (False, False)
        assert noted.until == NOON.timestamp() + pause_s


def test_a_retry_ends_pauses_of_calls_and_no_sleep() -> None:
    """W3: and reopens the step at which the flow has failed, no other one."""
    row = row_with()
    row.state, row.failed_step = FAILED, "failed"
    for name, record in (
        ("paused", StepRecord("outside", until=99.0)),
        ("asleep", StepRecord("sleep", until=99.0)),
        ("failed", StepRecord("outside", state=FAILED, error="bug")),
        ("beside", StepRecord("commit", state=FAILED, error="bug")),
        ("done", StepRecord("commit", state=DONE, until=99.0)),
    ):
        row.note(name, record)
    changes._reopen(row)

    records = row.records()
    assert [records[name].until for name in ("paused", "asleep", "done")] == [0, 99, 99]
    assert [records[name].has_ended for name in ("failed", "beside", "done")] == [False, True, True]
    assert row.failed_step is None


# Deliveries


@pytest.mark.parametrize(
    ("values", "is_parked"),
    [({}, True), ({"owner": "other"}, False), ({"sweeps": 1}, False), ({"turn": LONG_AGO}, False)],
)
def test_a_delivery_of_a_parked_flow_ends_unless_there_is_something_to_write(
    values: dict[str, Any], is_parked: bool
) -> None:
    """W11: a wake by the sweep, a turn that is over, or a lease that nobody holds any more."""
    delivered: Any = object.__new__(FlowAttempt)
    delivered.row = row_with()
    delivered.row.populate(**values)
    with pytest.raises(Suspended) if is_parked else contextlib.nullcontext():
        delivered.check_parked(None)


@pytest.mark.parametrize(
    ("sweeps", "due_s", "is_for_nothing"),
    [(0, None, True), (1, None, False), (0, 0, False), (0, 90, True), (1, 90, False)],
)
def test_a_wake_by_the_sweep_is_never_for_nothing(
    sweeps: int, due_s: float | None, is_for_nothing: bool
) -> None:
    """W11: the flow is due then, whatever its row says."""
    row = row_with()
    row.sweeps = sweeps
    if due_s is not None:
        late = datetime.timedelta(seconds=due_s) + wakes.GRACE
        row.due = (NOON + late).replace(tzinfo=None)
    assert turns._is_skipped(CLIENTS, row, lane=None) is is_for_nothing  # type: ignore[arg-type]


@pytest.mark.parametrize("is_free", [False, True])
def test_a_beat_waits_for_no_write_of_its_delivery(is_free: bool) -> None:
    """W5: which keeps the lease itself."""
    written: list[bool] = []

    def acquire(*, blocking: bool = True) -> bool:
        assert not blocking
        return is_free

    delivered: Any = object.__new__(FlowAttempt)
    delivered._lock = SimpleNamespace(acquire=acquire, release=lambda: None)
    delivered.is_leased = True
    delivered.clients = SimpleNamespace(context=contextlib.nullcontext)
    delivered.change = lambda transition, *, is_alone: written.append(is_alone)
    delivered.beat()

    assert written == ([True] if is_free else [])


_PARKED = test_a_delivery_of_a_parked_flow_ends_unless_there_is_something_to_write
_SWEPT = test_a_wake_by_the_sweep_is_never_for_nothing
_PAUSES = test_a_step_pauses_as_it_says_until_its_time_is_up
BUGS = (
    Bug(
        *(FlowAttempt, "check_parked", " or row.sweeps", "", _PARKED),
        {"values": {"sweeps": 1}, "is_parked": False},
        (Suspended,),
    ),
    Bug(
        *(turns, "_is_skipped", "if row.sweeps:", "if False:", _SWEPT),
        {"sweeps": 1, "due_s": None, "is_for_nothing": False},
    ),
    Bug(
        *(FlowAttempt, "beat", "acquire(blocking=False)", "acquire()"),
        *(test_a_beat_waits_for_no_write_of_its_delivery, {"is_free": False}),
    ),
    Bug(
        *(calls, "_failed", "error.after_s is not None and not is_counted"),
        *("error.after_s is not None", _PAUSES),
        {"error": Retry("later", after_s=60), "is_late": True, "pause_s": None, "attempts": 1},
    ),
    Bug(
        *(changes, "_reopen", "row.note(name, replace(record, until=0.0))", "pass"),
        test_a_retry_ends_pauses_of_calls_and_no_sleep,
    ),
    Bug(
        *(waits, "note_batch", "if row.state == RUNNING:", "if True:"),
        *(test_the_end_of_a_batch_wakes_no_flow_that_is_being_undone, {"state": UNDOING}),
    ),
    Bug(
        *(changes, "signal", 'f"event-{own}"', 'f"event-{transaction.id}"'),
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
        *(events, "restore", "[event, *row.events]", "[*row.events, event]"),
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
    Bug(*(events, "last_ids", "[-most:]", "[:most]"), test_a_row_knows_the_newest_ids),
    Bug(
        *(values, "stored", "len(data) <= MAX_INLINE_BYTES", "len(text) <= MAX_INLINE_BYTES"),
        *(test_a_value_is_in_rows_beyond_so_many_bytes, {"text": "€" * 101, "chunks": 1}),
    ),
    Bug(
        *(values, "stored", "value_key(run_id, owner, number)", "value_key(run_id, owner, 0)"),
        *(test_a_value_is_in_rows_beyond_so_many_bytes, {"text": "x" * 900_001, "chunks": 2}),
    ),
    Bug(
        *(VersionNote, "sign", "row.other_version_since or ", ""),
        test_who_waits_for_a_version_waits_since_the_first_refusal,
    ),
    Bug(
        *(wakes, "due_at", "at if at - now_utc > LONGEST_TASK else at + GRACE", "at + GRACE"),
        test_a_flow_that_has_a_task_has_some_seconds_more_than_that,
    ),
    Bug(
        *(sweep, "_enqueue", 'run_id.partition("|")[0] == name', "run_id.startswith(name)"),
        test_the_sweep_wakes_each_flow_by_its_own_task,
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """W8, W9, W11, W17, W20: each part of a row is for something."""
    bug.check_noticed(monkeypatch)
