"""States, claims and hints of a key, its rate and its windows, without a store; planted bugs."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.lanes import Rate, control, hints, sweep
from rollforward.lanes.gathered import running, timing
from rollforward.lanes.gathered import window as windows
from rollforward.lanes.gathered.window import Window
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import (
    Claim,
    LaneState,
    LaneTask,
    id_at,
    place_of,
    state_key,
    task_key,
    time_of,
)
from rollforward.lanes.runs import claims, ends
from rollforward.lanes.runs.ends import Dead, Later
from rollforward.runtime.clock import CLOCK_SKEW_S
from rollforward.runtime.messages import Message
from rollforward.tasks.errors import OtherVersionError, Reject, Retry, Unavailable
from rollforward.tasks.stored.entities import StoredArguments, stored_key
from rollforward.tasks.stored.envelope import Envelope
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
NOON_MS = int(NOON.timestamp() * 1000)
KEY = "mail|ada"
MINE, OTHER = Claim("mine", ("a", "b", "c"), charged_ms=NOON_MS + 1), Claim("other", ("d",))


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with offline(), Memory():
        yield


class Machine:
    """The clients of a process: at noon, with tasks that are noted."""

    def __init__(self) -> None:
        self.created: list[Any] = []
        self.slept: list[float] = []
        numbers = itertools.count()
        self.new_id = lambda: f"id{next(numbers)}"
        self.clock = SimpleNamespace(now=lambda: NOON, sleep=self.slept.append)
        self.tasks = SimpleNamespace(create=self.created.append)
        self.datastore = SimpleNamespace(project="p", database=None, namespace="n")


def lane_of(**options: Any) -> Any:
    task = SimpleNamespace(message=lambda args, name, at: (args, name, at))
    return SimpleNamespace(**{"order": False, "rate": None, "limit": 2, "task": task, **options})


def put_task(task_id: str, body: bytes = b"{}") -> None:
    key = task_key(task_id)
    row = LaneTask(key=key, place=task_id, path="/p", body=body.decode(), added=None)
    Memory.current.put(row)


def task_of(task_id: str) -> LaneTask:
    row = Memory.current.get(task_key(task_id))
    assert isinstance(row, LaneTask)
    return row


def put_state(**values: Any) -> LaneState:
    state = LaneState(key=state_key(KEY), stamp="before", **values)
    state.set_claims([MINE, OTHER])
    Memory.current.put(state)
    return state


def state() -> LaneState | None:
    return Memory.current.get(state_key(KEY))  # type: ignore[no-any-return]


def release(lane: Any, *, begun: int, running: str | None = None) -> Any:
    """Give my claim of three tasks back, of which some have begun."""
    holder = claims.Holder(Machine(), lane, KEY, MINE)  # type: ignore[arg-type]
    return holder._release(set("abc"[:begun]), running, begun, pace_ms=0, goes_on="")


# Claims


@pytest.mark.parametrize(("charged_ms", "given_back"), [(1, 2_000), (0, 0), (-1, 0)])
def test_a_charge_for_tasks_that_have_not_begun_is_given_back_before_its_time(
    charged_ms: int, given_back: int
) -> None:
    """K6: one that has passed was given back by time."""
    lane, charge = lane_of(rate=Rate(1)), NOON_MS + charged_ms
    stored = put_state(arrival_ms=NOON_MS + 5_000)
    stored.set_claims([Claim("mine", MINE.tasks, charged_ms=charge)])
    Memory.current.put(stored)
    release(lane, begun=1)

    after = state()
    assert after is not None, "the key keeps its rate"
    assert after.arrival_ms == NOON_MS + 5_000 - given_back


def test_who_gives_a_claim_back_leaves_all_others() -> None:
    """K4: and writes the task at which an error has stopped it, so that a late end is refused."""
    put_state(head="a")
    for task_id in "ab":
        put_task(task_id)
    assert release(lane_of(), begun=2, running="b") == {"d"}

    after = state()
    assert after is not None
    assert [claim.owner for claim in after.claims] == ["other"]
    assert [task_of(task_id).takeovers for task_id in "ab"] == [0, 1]
    assert after.head is None


@pytest.mark.parametrize(
    ("there", "counts", "failures", "is_careful"),
    [
        ("abc", True, {"a": 1, "b": 0, "c": 0}, False),
        ("abc", False, {"a": 0, "b": 0, "c": 0}, False),
        ("bc", True, {"b": 0, "c": 0}, True),
        ("bc", False, {"b": 0, "c": 0}, False),
        ("c", True, {"c": 1}, False),
        ("", True, {}, False),
    ],
)
def test_a_death_counts_for_the_one_task_that_it_is_known_to_be_over(
    there: str, counts: bool, failures: dict[str, int], is_careful: bool
) -> None:
    """K7: and for none where the delivery has ended alive, or any of some may be at fault."""
    stored = put_state()
    for task_id in there:
        put_task(task_id)
    machine: Any = Machine()
    claims.put_without_claim(machine, lane_of(), stored, MINE, counts=counts)

    after = state()
    assert after is not None
    assert {task_id: task_of(task_id).failures for task_id in there} == failures
    assert [task_of(task_id).takeovers for task_id in there] == [1, 0, 0][: len(there)]
    assert (bool(after.is_careful), after.head) == (is_careful, None)


def test_a_drain_leaves_what_is_at_work_and_no_rows_of_what_it_deletes() -> None:
    """K10: arguments that are stored expire then, and a repeated commit counts the same."""
    put_state(head="e")
    for task_id in "adef":
        stored_id = f"arguments of {task_id}"
        put_task(task_id, Envelope(None, stored_id, 1).body)
        Memory.current.put(StoredArguments(key=stored_key(stored_id), chunks=1, size=1))
    keys = [task_key(task_id) for task_id in "adef"]
    machine: Any = Machine()
    counts = [control._drain(machine, KEY, keys, 1, "now") for _ in range(2)]

    assert counts == [(1, 2), (1, 2)]
    assert [task_id for task_id in "adef" if Memory.current.get(task_key(task_id))] == list("adf")
    expiries = [Memory.current.get(stored_key(f"arguments of {each}")).expires for each in "adef"]
    assert [at is None for at in expiries] == [True, True, False, True]
    after = state()
    assert after is not None
    assert (after.head, after.stamp, after.claims) == (None, "now", [MINE, OTHER])


@pytest.mark.parametrize("dead_id", ["d1", "d2"])
def test_a_key_is_unblocked_by_the_dead_task_that_blocks_it_and_by_no_other(
    monkeypatch: pytest.MonkeyPatch, dead_id: str
) -> None:
    """K7: whether that is replayed, then it runs first, or deleted; another one waits behind."""
    calls: list[str] = []
    names = ("add_in_transaction", "put_first_in_transaction", "wake_after_transaction")
    noting = {name: lambda *args, name=name, **more: calls.append(name) for name in names}
    monkeypatch.setattr(control, "adding", SimpleNamespace(**noting))
    machine: Any = Machine()
    message = Message("/p", "default", b"{}")
    changes: list[tuple[Callable[[], None], str]] = [
        (
            lambda: control.take_back(
                machine, lane_of(), KEY, message, dead_id=dead_id, lane_task=f"{KEY}|07-c0ffee"
            ),
            "put_first_in_transaction" if dead_id == "d1" else "add_in_transaction",
        ),
        (
            lambda: control.unblock(machine, lane_of(), KEY, dead_id=dead_id),
            "wake_after_transaction" if dead_id == "d1" else "",
        ),
    ]
    for change, called in changes:
        put_state(blocked_by="d1")
        calls.clear()
        change()
        after = state()
        assert after is not None
        assert after.blocked_by == (None if dead_id == "d1" else "d1")
        assert calls == ([called] if called else [])


# Ends


@pytest.mark.parametrize(
    ("error", "failures", "end"),
    [
        (Reject("no"), 0, Dead),
        (OtherVersionError("new"), 99, (ends.VERSION_PAUSE_S, False, True)),
        (Retry("later", after_s=7), 99, (7, False, False)),
        (Retry("later"), 99, (ends.RACE_PAUSE_S, False, False)),
        (rpc_errors.Aborted("race"), 99, (ends.RACE_PAUSE_S, False, False)),  # type: ignore[no-untyped-call]
        (Unavailable("away"), 99, (ends.UNAVAILABLE_PAUSE_S, False, False)),
        (KeyError("bug"), 0, (1.0, True, False)),
        (KeyError("bug"), 1, (2.0, True, False)),
        (KeyError("bug"), 2, Dead),
    ],
)
def test_each_error_ends_a_run_in_its_way(error: Exception, failures: int, end: Any) -> None:
    """K7: only what is the task's own fault counts against it."""
    became = ends.end_of(error, failures=failures, max_attempts=3)

    if end is Dead:
        assert isinstance(became, Dead)
    else:
        assert isinstance(became, Later)
        assert (became.pause_s, became.is_failure, became.is_unknown) == end


# Hints


def test_a_hint_that_comes_early_again_and_again_is_waited_for() -> None:
    """K5: each of them has a name of its own; a hint for another time begins anew."""
    machine: Any = Machine()
    lane, at = lane_of(), NOON + datetime.timedelta(seconds=0.5)
    delivered = LaneArgs(KEY)
    for _ in range(4):
        hints.hint_at(machine, lane.task, KEY, at, delivered)
        delivered = machine.created[-1][0]
    hints.hint_at(machine, lane.task, KEY, at + datetime.timedelta(seconds=1), delivered)

    assert [args.early for args, *_ in machine.created] == [0, 1, 2, 3, 0]
    assert len({name for _, name, _ in machine.created}) == 5
    assert machine.slept == [0.5]


def test_a_task_that_a_clock_far_ahead_has_placed_is_due() -> None:
    """K5: to the sweep; one that was added for later is not."""
    machine: Any = Machine()
    lane = lane_of(due_at=lambda task, state: time_of(task.key.id()))
    for ahead_s, is_due in ((0, True), (1, False), (CLOCK_SKEW_S, False), (CLOCK_SKEW_S + 1, True)):
        at = NOON + datetime.timedelta(seconds=ahead_s)
        key = task_key(id_at(KEY, place_of(at), "c0ffee"))
        assert sweep._is_due(machine, lane, LaneTask(key=key), NOON) is is_due
        later = LaneTask(key=key, not_before=at.replace(tzinfo=None))
        assert sweep._is_due(machine, lane, later, NOON) is (ahead_s == 0)


def test_two_namespaces_with_one_memcached_share_no_mark() -> None:
    """K5: nor do two databases."""
    here: Any = Machine()
    scopes = {hints.scope_of(here)}
    for name in ("project", "database", "namespace"):
        there: Any = Machine()
        setattr(there.datastore, name, "other")
        scopes.add(hints.scope_of(there))
    assert len(scopes) == 4


# Rates


@pytest.mark.parametrize("burst", [1, 3])
def test_a_task_may_begin_when_the_rate_says_so_and_not_before(burst: int) -> None:
    """K6: from any sound arrival time on; one of a wrong clock lets one task begin."""
    rate = Rate(1, per_s=10, burst=burst)
    longest_ms = 10_000 * burst + int(1000 * CLOCK_SKEW_S)
    for ahead_ms in (0, 1, 9_999, 10_000, 10_001, 25_000, 35_000, longest_ms):
        arrival_ms = NOON_MS + ahead_ms
        at_ms = round(rate.next_at(arrival_ms, NOON_MS).timestamp() * 1000)
        assert at_ms == max(NOON_MS, arrival_ms - 10_000 * (burst - 1))
        assert rate.allowed(arrival_ms, at_ms) >= 1
        assert at_ms == NOON_MS or rate.allowed(arrival_ms, at_ms - 1) == 0
    assert rate.allowed(NOON_MS + longest_ms + 1, NOON_MS) == 1


# Windows


def test_a_window_ends_by_its_timing() -> None:
    """R3, R8: and a time is never taken for an earlier one."""
    first, last = NOON, NOON + datetime.timedelta(seconds=8)
    debounce = timing.Debounce(5, max_s=10)
    assert (debounce.due(first, first, None) - NOON).total_seconds() == 5
    assert (debounce.due(first, last, None) - NOON).total_seconds() == 10
    throttle = timing.Throttle(60)
    assert throttle.due(first, last, None) == first
    assert (throttle.due(last, last, first) - NOON).total_seconds() == 60
    assert windows.milliseconds(NOON + datetime.timedelta(microseconds=1)) == NOON_MS + 1


def test_the_rest_of_a_window_belongs_to_its_period() -> None:
    """R8: calls beyond it begin a new one."""
    rows = [LaneTask(key=task_key(f"{KEY}|{place}")) for place in ("03", "04")]
    before = Window(began_ms=7, rest_until="03")
    rest = before.started(rows, "", NOON_MS)
    assert (rest.calls, rest.began_ms, rest.rest_until) == (("03", "04"), 7, "")
    assert Window(began_ms=7, rest_until="02").started(rows, "", NOON_MS).began_ms == NOON_MS
    assert Window(began_ms=7).started(rows, "04", NOON_MS).began_ms == NOON_MS


def test_a_window_that_no_version_reads_waits_since_the_first_refusal() -> None:
    """R2: until one has read it."""
    machine: Any = Machine()
    window = Window(calls=("01",), unknown_since_ms=7, failures=1)
    for end, since_ms, failures in (
        (ends.unknown("new"), 7, 1),
        (Later(1.0, "busy"), 0, 1),
        (Later(1.0, "bug", is_failure=True), 0, 2),
    ):
        after = running._after(machine, window, end)
        assert (after.unknown_since_ms, after.failures) == (since_ms, failures)
        assert after.not_before_ms == NOON_MS + round(1000 * end.pause_s)
    assert running._after(machine, Window(), ends.unknown("new")).unknown_since_ms == NOON_MS


_CHARGE = test_a_charge_for_tasks_that_have_not_begun_is_given_back_before_its_time
_DEATH = test_a_death_counts_for_the_one_task_that_it_is_known_to_be_over
_NOT_KNOWN = {"there": "bc", "counts": True, "failures": {"b": 0, "c": 0}, "is_careful": True}
_OVER = {"there": "abc", "counts": False, "failures": dict.fromkeys("abc", 0), "is_careful": False}
_BLOCK = test_a_key_is_unblocked_by_the_dead_task_that_blocks_it_and_by_no_other
_DRAIN = test_a_drain_leaves_what_is_at_work_and_no_rows_of_what_it_deletes
BUGS = (
    Bug(
        *(sweep, "_is_due", "task.not_before is None and ", "False and "),
        test_a_task_that_a_clock_far_ahead_has_placed_is_due,
    ),
    Bug(
        *(control, "take_back", "state.blocked_by != dead_id", "not state.blocked_by", _BLOCK),
        {"dead_id": "d2"},
    ),
    Bug(
        *(control, "unblock", "state.blocked_by != dead_id", "not state.blocked_by", _BLOCK),
        {"dead_id": "d2"},
    ),
    Bug(*(control, "_drain", "        arguments.release(clients, body)\n", "", _DRAIN)),
    Bug(*(control, "_drain", "if key.id() not in claimed", "", _DRAIN)),
    Bug(*(control, "_drain", "state is not None and state.stamp == stamp", "False", _DRAIN)),
    Bug(*(control, "_drain", "        state.head = None\n", "        pass\n", _DRAIN)),
    Bug(
        *(claims.Holder, "_release", "len(self.claim.tasks) - begun", "0"),
        *(_CHARGE, {"charged_ms": 1, "given_back": 2_000}),
    ),
    Bug(
        *(claims.Holder, "_release", " and _now_ms(self.clients) < claim.charged_ms", ""),
        *(_CHARGE, {"charged_ms": 0, "given_back": 0}),
    ),
    Bug(
        *(claims.Holder, "_release", "has_rest or self.lane.rate is not None", "has_rest"),
        *(_CHARGE, {"charged_ms": 1, "given_back": 2_000}),
    ),
    Bug(
        *(claims.Holder, "_release", "        _take_over(running)", "        pass"),
        test_who_gives_a_claim_back_leaves_all_others,
    ),
    Bug(
        *(claims.Holder, "_release", "if other.owner != claim.owner", "if False"),
        test_who_gives_a_claim_back_leaves_all_others,
    ),
    Bug(
        *(
            claims,
            "put_without_claim",
            "undeleted and counts and is_known",
            "undeleted and is_known",
        ),
        *(_DEATH, _OVER),
    ),
    Bug(
        *(claims, "put_without_claim", "is_known = claim.is_careful or", "is_known = True or"),
        *(_DEATH, _NOT_KNOWN),
    ),
    Bug(
        *(claims, "put_without_claim", "undeleted[0].takeovers += 1", "pass"),
        *(_DEATH, _OVER),
    ),
    Bug(
        *(ends, "end_of", "if failures >= max_attempts:", "if failures > max_attempts:"),
        *(test_each_error_ends_a_run_in_its_way,),
        {"error": KeyError("bug"), "failures": 2, "end": Dead},
    ),
    Bug(
        *(hints, "hint_at", "delivered.early + 1 if", "1 if"),
        test_a_hint_that_comes_early_again_and_again_is_waited_for,
    ),
    Bug(
        *(hints, "hint_at", "delivered.due_ms == due_ms", "True"),
        test_a_hint_that_comes_early_again_and_again_is_waited_for,
    ),
    Bug(
        *(hints, "scope_of", ":{client.namespace or ''}", ""),
        test_two_namespaces_with_one_memcached_share_no_mark,
    ),
    Bug(
        *(Rate, "next_at", "(self.most_at_once - 1)", "0"),
        *(test_a_task_may_begin_when_the_rate_says_so_and_not_before, {"burst": 3}),
    ),
    Bug(
        *(Rate, "_valid", " + 1000 * CLOCK_SKEW_S", ""),
        *(test_a_task_may_begin_when_the_rate_says_so_and_not_before, {"burst": 1}),
    ),
    Bug(*(timing.Debounce, "due", "min(", "max("), test_a_window_ends_by_its_timing),
    Bug(
        *(timing.Throttle, "due", "max(opened, began + _seconds(self.every_s))", "opened"),
        test_a_window_ends_by_its_timing,
    ),
    Bug(*(windows, "milliseconds", "-int(-at", "int(at"), test_a_window_ends_by_its_timing),
    Bug(
        *(Window, "started", "self.began_ms if is_rest and self.began_ms else now_ms", "now_ms"),
        test_the_rest_of_a_window_belongs_to_its_period,
    ),
    Bug(
        *(Window, "started", "calls[0] <= self.rest_until", "calls[-1] <= self.rest_until"),
        test_the_rest_of_a_window_belongs_to_its_period,
    ),
    Bug(
        *(running, "_after", "window.unknown_since_ms or milliseconds", "milliseconds"),
        test_a_window_that_no_version_reads_waits_since_the_first_refusal,
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """K4, K5, K6, K7, K10, R2, R3, R8: each part of a key's state is for something."""
    bug.check_noticed(monkeypatch)
