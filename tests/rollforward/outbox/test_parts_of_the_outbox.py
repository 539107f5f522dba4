"""Rows of a transaction, their tasks' names, and what a process tries again, without a store."""

from __future__ import annotations

import contextlib
import datetime
import importlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.datastore.transactions import Transaction
from rollforward.outbox import background
from rollforward.outbox.enqueue import _Outbound
from rollforward.outbox.entities import OutboxLease, OutboxTask, RowId, lease_key, outbox_key
from rollforward.outbox.relay import RelayResult
from rollforward.runtime.clock import CLOCK_SKEW_S
from rollforward.runtime.messages import Message
from rollforward.runtime.sweeps.backoff import PATIENT_AFTER_S
from rollforward.runtime.sweeps.sweep_round import SweepRound
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug
from tests.rollforward.outbox.rows import SWEEP as sweep

pytestmark = pytest.mark.fast

# The package has functions of these modules' names.
relay = importlib.import_module("rollforward.outbox.relay")

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  As Datastore's times are.


class Noting:
    """A relay that notes what it is asked for."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.looked: list[str] = []

    def send(self, clients: object, rows: Sequence[OutboxTask]) -> None:
        self.sent += [row.path for row in rows]

    def resolve(self, clients: object, rows: Sequence[OutboxTask]) -> None:
        self.looked += [row.path for row in rows]


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with offline(), Memory():
        yield


def machine(ahead_s: float = 0.0) -> Any:
    now_utc = (NOON + datetime.timedelta(seconds=ahead_s)).replace(tzinfo=datetime.UTC)
    clock = SimpleNamespace(now=lambda: now_utc)
    return SimpleNamespace(clock=clock, relay=Noting(), datastore=None)


def outgoing() -> _Outbound:
    return _Outbound(machine(), Transaction(), NOON)


def put(out: _Outbound, path: str = "/a", **options: Any) -> str:
    return out.put(lambda row: Message(path, "default", b"{}"), is_unacked=True, **options)


def row_at(created: datetime.datetime, *, is_unacked: bool = True) -> RowId:
    return RowId("c0ffee", created, 0, is_unacked, "1a2b3c4d")


# Transactions


def test_equal_tasks_of_one_transaction_have_rows_of_their_own() -> None:
    """B1: whoever takes them; and the same rows when the body runs again."""
    out = outgoing()

    def body() -> list[str]:
        return [put(out, tag="t", is_gathered=number % 2 == 0) for number in range(4)]

    first = body()
    out.on_retry(ConnectionError())
    out.transaction.counts.clear()

    assert len(set(first)) == 4
    assert body() == first


def test_a_task_has_the_same_row_whichever_tasks_are_enqueued_before_it() -> None:
    """B6: a body that runs again may find those done."""
    out = outgoing()
    first = [put(out, path) for path in ("/a", "/b", "/b")]
    out.on_retry(ConnectionError())
    out.transaction.counts.clear()

    assert [put(out, path) for path in ("/b", "/b")] == first[1:]


@pytest.mark.parametrize("is_in_doubt", [False, True])
def test_rows_of_attempts_that_may_be_committed_are_looked_for(is_in_doubt: bool) -> None:
    """B1: after a commit those that it did not write again, after a give-up all of them."""
    for ends in ("on_commit", "on_outcome_unknown"):
        out = outgoing()
        put(out, "/first")
        put(out, "/both")
        out.transaction.doubt = ConnectionError() if is_in_doubt else None
        out.on_retry(ConnectionError())
        out.transaction.counts.clear()
        put(out, "/last")
        put(out, "/both")
        getattr(out, ends)()

        noted: Any = out.clients.relay
        if ends == "on_commit":
            assert (noted.sent, noted.looked) == (["/last", "/both"], ["/first"])
        else:
            assert noted.sent == []
            expected = ["/both", "/first", "/last"] if is_in_doubt else []
            assert sorted(noted.looked) == expected


# Names


def test_an_old_unacked_row_has_another_task_once_it_is_due() -> None:
    """B1: until then its first one waits; a row without an ack has one task."""
    old = NOON - datetime.timedelta(seconds=2 * PATIENT_AFTER_S)
    names = {}
    for created in (NOON, old):
        for at in (None, NOON, NOON + datetime.timedelta(seconds=1)):
            for is_unacked in (True, False):
                key = outbox_key(row_at(created, is_unacked=is_unacked).text)
                row = OutboxTask(key=key, path="/a", queue="default", body="{}", at=at)
                first = relay.hashed_name("outbox", key.id(), 0)
                names[created, at, is_unacked] = relay._task_name(row, NOON) == first
    others = [key for key, is_first in names.items() if not is_first]

    assert others == [(old, None, True), (old, NOON, True)]
    named = OutboxTask(key=outbox_key(row_at(old).text), path="/a", name="own")
    assert relay._task_name(named, NOON) == "own"


def test_a_row_of_a_clock_far_ahead_counts_as_old() -> None:
    """B5: one of a clock a little ahead is young."""
    for ahead_s, age_s in ((0, 0), (CLOCK_SKEW_S - 1, 1 - CLOCK_SKEW_S), (1e6, PATIENT_AFTER_S)):
        created = NOON + datetime.timedelta(seconds=ahead_s)
        assert relay.age_s(row_at(created), NOON) == age_s


# Leases


@pytest.mark.parametrize(
    ("owner", "ends_s", "is_free"),
    [
        ("other", 0, True),
        ("other", 1, False),
        ("another", 1, False),
        ("other", 2 * sweep.ASKED_S, False),
        ("other", 2 * sweep.ASKED_S + 1, True),
        ("mine", 1, True),
    ],
)
def test_a_partition_is_drained_by_one_walk(owner: str, ends_s: float, is_free: bool) -> None:
    """B5: a lease that has expired, or is of a wrong clock, is taken over; its own stays."""
    ends = NOON + datetime.timedelta(seconds=ends_s)
    Memory.current.put(OutboxLease(key=lease_key("c"), owner=owner, ends=ends))
    args = sweep.Drain("c", "mine")

    assert sweep._take(machine(), args) is is_free
    assert Memory.current.get(lease_key("c")).owner == ("mine" if is_free else owner)
    sweep._release(args)
    assert (Memory.current.get(lease_key("c")) is None) is is_free


# The sweep


def ids_of(ages: str) -> list[Any]:
    """Return the keys of a partition, "a100 a50": each the age of a row in seconds."""
    rows = [(word[0], datetime.timedelta(seconds=int(word[1:]))) for word in ages.split()]
    return [
        outbox_key(RowId(letter * 6, NOON - age, 0, is_unacked=False, digest="d").text)
        for letter, age in rows
    ]


@pytest.mark.parametrize(
    ("rows", "due", "busy"),
    [
        ("a100 a50|b90 b40|c80", "a100 b90", "abc"),
        ("a100 a5|b90", "a100 b90", ""),
        ("a100 a50|b30", "a100 a50", "ab"),
        ("a9 a5|b30", "b30", ""),
    ],
)
def test_a_sweep_takes_the_oldest_rows_and_leaves_young_ones_alone(
    monkeypatch: pytest.MonkeyPatch, rows: str, due: str, busy: str
) -> None:
    """B5: whichever partition they are in; one whose last row is young has no more."""
    found = {part[0]: ids_of(part) for part in rows.split("|")}

    def partition_of(letter: str) -> Any:
        keys = found.get(letter, [])[:2]
        future = SimpleNamespace(get_result=lambda: keys)
        return SimpleNamespace(fetch_async=lambda limit, keys_only: future)

    monkeypatch.setattr(sweep, "outbox_rows", partition_of)
    monkeypatch.setattr(sweep, "MAX_PER_CALL", 2)
    selection = sweep._Selection(SweepRound("outbox", NOON), stale_s=30)
    oldest, partitions = selection.oldest()

    assert oldest == ids_of(due)
    assert "".join(partitions) == busy


@pytest.mark.parametrize("fails", [False, True])
def test_a_partition_whose_walk_could_not_be_created_is_free(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """B5: and one that another walk drains gets none; those that exist may wait for their queue."""
    enqueued: list[str] = []

    def enqueue_many(clients: object, many: Any, names: object) -> None:
        if fails:
            raise ConnectionError
        enqueued.extend(args.partition for args in many)

    monkeypatch.setattr(sweep, "drain", SimpleNamespace(enqueue_many=enqueue_many))
    monkeypatch.setattr(sweep, "transact", lambda body: body())
    later = NOON + datetime.timedelta(seconds=60)
    Memory.current.put(OutboxLease(key=lease_key("c"), owner="other", ends=later))
    clients = machine()
    clients.new_id = lambda: "walk"
    selection = sweep._Selection(SweepRound.of("outbox", NOON, None), stale_s=30)
    with pytest.raises(ConnectionError) if fails else contextlib.nullcontext():
        assert sweep._send(clients, selection, ["a", "b", "c"]) == 2

    leases = [Memory.current.get(lease_key(partition)) for partition in "abc"]
    owners = [lease and lease.owner for lease in leases]
    assert owners == [*([None, None] if fails else ["walk", "walk"]), "other"]
    asked_for = NOON + datetime.timedelta(seconds=sweep.ASKED_S)
    assert [lease.ends for lease in leases if lease] == [*([] if fails else [asked_for] * 2), later]
    assert enqueued == ([] if fails else ["a", "b"])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_walk_goes_on_behind_a_full_page(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """B5: also if that was all; at its end it gives its lease back."""
    keys = ids_of("c9 c8 c7 c6"[: 3 * count - 1])
    goes_on: list[Any] = []

    def find(partition: str, after: str) -> Any:
        return SimpleNamespace(fetch=lambda limit, keys_only: keys[:limit])

    walk = sweep.drain.work
    enqueue = lambda clients, args, name: goes_on.append((args.after, name))  # noqa: E731
    monkeypatch.setattr(sweep, "drain", SimpleNamespace(enqueue=enqueue))
    monkeypatch.setattr(sweep, "outbox_rows", find)
    monkeypatch.setattr(sweep, "MAX_PER_DRAIN", 3)
    monkeypatch.setattr(sweep, "transact", lambda body: body())
    walk(machine(), sweep.Drain("c", "mine", began=NOON, stale_s=30))

    last = keys[2].id() if count >= 3 else ""
    assert goes_on == ([(last, ("mine", "c", last))] if last else [])
    assert (Memory.current.get(lease_key("c")) is None) is (not last)


@pytest.mark.parametrize(("age_s", "is_dead"), [(599, False), (600, True)])
def test_a_refused_row_is_dead_after_ten_minutes_and_an_unacked_one_stays(
    monkeypatch: pytest.MonkeyPatch, age_s: int, is_dead: bool
) -> None:
    """B5: until then its queue may be created by a deployment."""
    created = NOON - datetime.timedelta(seconds=age_s)
    keys = [outbox_key(row_at(created, is_unacked=is_unacked).text) for is_unacked in (True, False)]
    rows = [OutboxTask(key=key, path="/a", queue="q", body="{}") for key in keys]
    for row in rows:
        Memory.current.put(row)
    refused = RelayResult(0, [(row, KeyError("queue")) for row in rows], [])
    monkeypatch.setattr(sweep, "relay", lambda clients, rows: refused)
    dead: list[str] = []
    letter = lambda clients, **fields: dead.append(fields["path"])  # noqa: E731
    monkeypatch.setattr(sweep.dead_tasks, "dead_letter", letter)
    selection = sweep._Selection(SweepRound.of("outbox", NOON, None), stale_s=30)
    sweep._relay_due(machine(), selection, keys)

    assert len(dead) == (2 if is_dead else 0)
    assert [Memory.current.get(key) is None for key in keys] == [False, is_dead]


# The relay of a process


def test_what_a_process_keeps_for_later_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """B5: rows that wait for a second try count as well, and go first; the sweep has them."""
    monkeypatch.setattr(background, "MAX_WAITING", 5)
    of_process = background.BackgroundRelay()
    of_process._is_draining = True
    rows = [OutboxTask(key=outbox_key(f"row{number}"), path="/a") for number in range(4)]
    of_process._delayed = [[background._Job(rows[0])], [background._Job(rows[1])]]
    for _ in range(2):
        of_process.send(machine(), rows[2:])

    assert len(of_process._waiting) == 4
    assert of_process._delayed == [[background._Job(rows[0])], []]
    for _ in range(2):
        of_process.send(machine(), rows[2:])
    assert len(of_process._waiting) == 5
    assert of_process._delayed == [[], []]


def test_a_row_in_doubt_is_tried_as_any_other_once_it_is_known_to_be_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B5: until then it is looked for a few times only."""
    committed: list[OutboxTask] = []
    rows = [OutboxTask(key=outbox_key(f"row{number}"), path=f"/{number}") for number in range(3)]
    errands = [background._Job(row, in_doubt=number > 0) for number, row in enumerate(rows)]
    monkeypatch.setattr(background, "committed", lambda rows: committed)
    unanswered = lambda clients, rows: RelayResult(0, [], rows)  # noqa: E731
    monkeypatch.setattr(background, "relay", unanswered)
    clients: Any = machine()

    assert background._relay_committed(clients, errands) == errands
    assert [errand.in_doubt for errand in errands] == [False, True, True]
    committed.append(rows[1])
    assert background._relay_committed(clients, errands) == errands
    assert [errand.in_doubt for errand in errands] == [False, False, True]


_TWICE = test_rows_of_attempts_that_may_be_committed_are_looked_for
_LEASE = test_a_partition_is_drained_by_one_walk
_DOUBT = test_a_row_in_doubt_is_tried_as_any_other_once_it_is_known_to_be_committed
_NAMES = test_an_old_unacked_row_has_another_task_once_it_is_due
_OLDEST = test_a_sweep_takes_the_oldest_rows_and_leaves_young_ones_alone
_REFUSED = test_a_refused_row_is_dead_after_ten_minutes_and_an_unacked_one_stays
_COUNT = 'self.transaction.count(f"{_HOOK}|{digest}") - 1'
BUGS = (
    Bug(*(_Outbound, "put", _COUNT, "0"),
        test_equal_tasks_of_one_transaction_have_rows_of_their_own),
    Bug(*(_Outbound, "put", _COUNT, "len(self.rows)"),
        test_equal_tasks_of_one_transaction_have_rows_of_their_own),
    Bug(*(_Outbound, "put", "count(f\"{_HOOK}|{digest}\")", "count(_HOOK)"),
        test_a_task_has_the_same_row_whichever_tasks_are_enqueued_before_it),
    Bug(*(_Outbound, "on_retry", "self.doubtful += self.rows", "pass", _TWICE),
        {"is_in_doubt": True}),
    Bug(*(_Outbound, "on_outcome_unknown", "(*self.doubtful, *self.rows)", "self.rows", _TWICE),
        {"is_in_doubt": True}),
    Bug(*(_Outbound, "on_outcome_unknown", " and self.transaction.doubt is not None", "", _TWICE),
        {"is_in_doubt": False}),
    Bug(*(_Outbound, "on_commit", "if row.key not in rows", "", _TWICE),
        {"is_in_doubt": True}),
    Bug(*(relay, "_task_name", "if id_.is_unacked and is_due", "if id_.is_unacked", _NAMES)),
    Bug(*(relay, "_task_name", "if id_.is_unacked and is_due", "if is_due", _NAMES)),
    Bug(*(relay, "age_s", "if seconds > -CLOCK_SKEW_S else PATIENT_AFTER_S", ""),
        test_a_row_of_a_clock_far_ahead_counts_as_old),
    Bug(*(sweep, "_take", "lease.owner != args.walk and ", "", _LEASE),
        {"owner": "mine", "ends_s": 1, "is_free": True}),
    Bug(*(sweep, "_is_taken", " <= longest", "", _LEASE),
        {"owner": "other", "ends_s": 2 * sweep.ASKED_S + 1, "is_free": True}),
    Bug(*(sweep, "_release", " and lease.owner == args.walk", "", _LEASE),
        {"owner": "other", "ends_s": 1, "is_free": False}),
    Bug(*(sweep._Selection, "oldest", "due.sort(key=lambda key: row_id(key).created)", "pass",
          _OLDEST), {"rows": "a100 a50|b90 b40|c80", "due": "a100 b90", "busy": "abc"}),
    Bug(*(sweep._Selection, "oldest", " and not self.is_recent(row_id(keys[-1]))", "", _OLDEST),
        {"rows": "a100 a5|b90", "due": "a100 b90", "busy": ""}),
    Bug(*(sweep, "_send",
          "ndb.delete_multi([lease_key(partition) for partition in free])", "pass"),
        test_a_partition_whose_walk_could_not_be_created_is_free, {"fails": True}),
    Bug(*(sweep, "_relay_due", ">= REFUSED_FOR_S", ">= selection.stale_s", _REFUSED),
        {"age_s": 599, "is_dead": False}),
    Bug(*(sweep, "_dead_letter", "if not row_id(row.key).is_unacked:", "if True:", _REFUSED),
        {"age_s": 600, "is_dead": True}),
    Bug(*(background.BackgroundRelay, "_make_room", " + sum(map(len, self._delayed))", ""),
        test_what_a_process_keeps_for_later_is_bounded),
    Bug(*(background, "_relay_committed", "errand.in_doubt = False", "pass", _DOUBT)),
    Bug(*(background, "_relay_committed", "e.in_doubt or ", "", _DOUBT)),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """B1, B5: each guard of a row and of its relay is for something."""
    bug.check_noticed(monkeypatch)
