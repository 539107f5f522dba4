"""Receipts, leases and turns of pages, without a store, and planted bugs."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.continuations import sweep
from rollforward.continuations.entities import (
    FINISHED,
    PAGES_KEPT_FOR,
    RUNNING,
    ContinuationHeartbeat,
    ContinuationPage,
    ContinuationRun,
    heartbeat_key,
    page_key,
    run_key,
)
from rollforward.continuations.jobs import DeferredItemError, SkippedItemError
from rollforward.continuations.pages import attempt, receipts, turns
from rollforward.continuations.pages.lease import LeasedError, PageLease
from rollforward.continuations.pages.receipts import receipt_of
from rollforward.runtime.channel.rpc import Cost
from rollforward.runtime.clock import CLOCK_SKEW_S
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug
from tests.rollforward.continuations.walk_jobs import APPLY

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  As Datastore's times are.
JOB = replace(APPLY, retry_delays_s=(10.0, 60.0), max_attempts=4, lease_s=6.0, deadline_s=300.0)
SENDS = replace(JOB, apply=None, side_effect=lambda clients, args: contextlib.nullcontext(print))


class Machine:
    """The clients of a process whose clock the test sets."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.dead: set[str] = set()
        self.clock = SimpleNamespace(now=lambda: seconds(self.at_s).replace(tzinfo=datetime.UTC))
        self.processes = SimpleNamespace(is_dead=lambda owner: owner in self.dead)

    def new_owner(self) -> str:
        return "mine"

    def context(self) -> Any:
        return contextlib.nullcontext()


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with offline(), Memory() as stored:
        put = lambda row, timeout: stored.put(row)  # noqa: E731
        monkeypatch.setattr(ContinuationHeartbeat, "put", put)
        yield


def seconds(at_s: float) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=at_s)


def page_of(letters: str, **values: Any) -> ContinuationPage:
    return ContinuationPage(
        key=page_key("run", 0, 0),
        after="",
        load_from="",
        items=[str(number) for number in range(len(letters))],
        receipts=letters,
        updated_at=NOON,
        progressed_at=NOON,
        **values,
    )


def lease_of(machine: Any, job: Any = JOB) -> PageLease:
    run: Any = SimpleNamespace(key=page_key("run", 0, 0), has_slots=False)
    return PageLease(machine, job, run, page_key("run", 0, 0))


def beats(of: str, until_s: float) -> None:
    key = heartbeat_key(page_key("run", 0, 0).id(), of)
    Memory.current.put(ContinuationHeartbeat(key=key, expires_at=seconds(until_s)))


def test_an_item_waits_as_the_job_says_and_fails_after_its_last_attempt() -> None:
    """A1: the last delay repeats; items that have ended keep their receipts."""
    page = page_of("dwww")
    deferred, skipped = receipt_of(DeferredItemError("busy")), receipt_of(SkippedItemError("gone"))
    receipts.record(page, JOB, {1: skipped}, is_last=False)
    assert (page.attempts, page.retry_at) == (0, None)

    waits = []
    for _ in range(JOB.max_attempts):
        receipts.record(page, JOB, {2: deferred, 3: deferred}, is_last=True)
        waits.append((page.retry_at, page.done, page.receipts[2:]))
    letters = [letters for *_, letters in waits]
    assert [at for at, *_ in waits] == [seconds(delay_s) for delay_s in (10, 60, 60, 60)]
    assert [done for _, done, _ in waits] == [False, False, False, True]
    assert letters[0] == letters[1] == letters[2] != letters[3]
    assert page.receipts[:2] == f"d{skipped[0]}"
    assert page.reasons == {"1": "gone", "2": "busy", "3": "busy"}

    receipts.record(page, JOB, {2: receipt_of(None)}, is_last=False)
    assert page.reasons == {"1": "gone", "3": "busy"}


def test_a_page_is_too_early_only_while_items_wait_by_a_sound_clock() -> None:
    """A1: one that has only to be closed is closed, whenever its task comes."""
    machine: Any = Machine()
    latest_s = max(JOB.retry_delays_s) + CLOCK_SKEW_S
    for retry_s, is_early in ((0, False), (1, True), (latest_s, True), (latest_s + 1, False)):
        for done in (False, True):
            page = page_of("w", done=done, retry_at=seconds(retry_s))
            assert attempt._is_not_due(machine, JOB, page) is (is_early and not done)


def test_chains_take_turns_at_the_rate_of_their_run() -> None:
    """A1: the second page of a chain comes after the first ones of all chains."""
    machine: Any = Machine()
    run: Any = SimpleNamespace(max_rate=2.0, spans=[0, 0, 0], started=NOON, page_size=10)
    waits = [
        attempt._wait_s(machine, run, attempt.PageArgs("run", chain, number, ""))
        for number in range(2)
        for chain in range(3)
    ]
    assert waits == [0, 5, 10, 15, 20, 25]


@pytest.mark.parametrize(
    ("page_size", "late_s", "wait_s"),
    [(10, 60, 0), (10, 61, 15), (1_000, 1_500, 0), (1_000, 1_501, 1_500)],
)
def test_a_run_makes_good_a_minute_or_one_page_of_each_chain(
    page_size: int, late_s: float, wait_s: float
) -> None:
    """A1: one that was held up for longer goes on at its rate."""
    machine: Any = Machine()
    run: Any = SimpleNamespace(
        max_rate=2.0, spans=[0, 0, 0], started=seconds(-late_s), page_size=page_size
    )
    page = attempt.PageArgs("run", 0, 0, "")
    assert attempt._wait_s(machine, run, page) == wait_s


@pytest.mark.parametrize(("count", "doubts"), [(3, 3), (10, 10), (11, 10)])
def test_what_a_silent_attempt_may_have_done_is_in_doubt_and_no_more(
    count: int, doubts: int
) -> None:
    """H4: as many items as are done without a receipt; the lease doubles by that alone."""
    for job, in_doubt in ((SENDS, doubts), (JOB, 0)):
        for dead, takeovers in (("other", 0), ("another", 1)):
            machine: Any = Machine()
            machine.dead = {dead}
            page = page_of("w" * count, owner="other", lease_expires_at=seconds(0))
            lease_of(machine, job)._check_free(page)
            assert (page.in_doubt, page.takeovers) == (in_doubt, takeovers)


def test_a_page_is_taken_from_nobody_that_gives_a_sound_sign_of_life() -> None:
    """H4: by its lease, or by a heartbeat of this very attempt; none of a clock far ahead."""
    longest_s = JOB.lease_s + CLOCK_SKEW_S
    lease = lease_of(Machine())
    beats("somebody else", 5)
    lease._check_free(page_of("w", owner="other", lease_expires_at=seconds(0)))
    for at_s, is_alive in ((0, False), (1, True), (longest_s, True), (longest_s + 1, False)):
        for lease_s, beat_s in ((at_s, 0.0), (0.0, at_s)):
            page = page_of("w", owner="other", lease_expires_at=seconds(lease_s))
            beats("other", beat_s)
            with pytest.raises(LeasedError) if is_alive else contextlib.nullcontext():
                lease._check_free(page)


def test_a_lease_is_kept_by_heartbeats_until_it_was_lost_or_its_deadline_came() -> None:
    """H4: one that has expired may be another's."""
    machine: Any = Machine()
    lease = lease_of(machine)
    lease._expires_at = seconds(6)
    for at_s, kept_s in ((0, 6), (5, 11), (10.9, 16.9)):
        machine.at_s = at_s
        lease.beat()
        assert lease._kept_to == seconds(kept_s)
    machine.at_s = 17
    lease.beat()
    assert lease._kept_to == seconds(16.9)

    machine.at_s, lease._expires_at = 300, seconds(400)
    lease.beat()
    assert lease._kept_to == seconds(16.9)
    machine.at_s = 299
    lease.beat()
    assert lease._kept_to == seconds(305)


def test_a_commit_records_nothing_for_an_item_that_has_ended() -> None:
    """A1: another attempt has tried it meanwhile, or a commit whose reply was lost."""
    mine: Any = object.__new__(attempt._PageAttempt)
    mine.job = replace(JOB, apply=lambda clients, args, items: [None for _ in items])
    mine.clients = mine.job_args = None
    mine.receipts = {0: ("f", "late"), 1: ("f", "busy")}
    recorded = mine._found_in(page_of("dwdw"), [(2, "ended"), (3, "open")])

    assert recorded == {1: ("f", "busy"), 3: receipt_of(None)}


def test_the_cost_of_a_page_is_what_was_spent_since_the_last_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A6: each commit adds its own part, and its own write."""
    page, spent = page_of("www", owner="mine"), [0]
    machine: Any = Machine()
    machine.meter = SimpleNamespace(cost=lambda: Cost(reads=spent[0]))
    mine: Any = object.__new__(attempt._PageAttempt)
    mine.args, mine.key, mine.job = attempt.PageArgs("run", 0, 0, ""), page.key, JOB
    mine.run = SimpleNamespace(state=RUNNING, has_slots=False)
    mine.clients, mine.receipts, mine.commits, mine.doubts = machine, {}, 0, 0
    mine.committed, mine.looked, mine.priced = machine.clock.now(), machine.clock.now(), Cost()
    nothing = lambda page, **options: None  # noqa: E731
    commit = lambda change, is_alone: change(page)  # noqa: E731
    mine.lease = SimpleNamespace(owner="mine", renew=nothing, finish=nothing, commit=commit)
    for _ in range(3):
        spent[0] += 5
        mine._commit()

    cost = Cost.of(page.cost)
    assert (cost.reads, cost.writes, cost.round_trips) == (15, 3, 3)


@pytest.mark.parametrize(
    ("until_s", "retry_state", "is_deleted", "kept_s"),
    [
        (0, None, True, None),
        (1, None, False, 1),
        (None, None, False, None),
        (0, FINISHED, True, None),
        (0, RUNNING, False, PAGES_KEPT_FOR.total_seconds()),
    ],
)
def test_pages_go_after_their_time_unless_a_retry_reads_them(
    monkeypatch: pytest.MonkeyPatch,
    until_s: float | None,
    retry_state: str | None,
    is_deleted: bool,
    kept_s: float | None,
) -> None:
    """A3: what was found before a run was retried is looked at again."""
    deleted: list[Any] = []
    run = ContinuationRun(key=run_key("run"), state=FINISHED)
    run.pages_until = None if until_s is None else seconds(until_s)
    if retry_state is not None:
        run.retried_by = "retry"
        Memory.current.put(ContinuationRun(key=run_key("retry"), state=retry_state))
    Memory.current.put(run)
    one = SimpleNamespace(fetch=lambda limit, keys_only: [page_key("run", 0, 0)])
    monkeypatch.setattr(sweep, "heartbeats_of", lambda run_id: one)
    monkeypatch.setattr(sweep, "pages_of", lambda run_id: one)
    monkeypatch.setattr(sweep, "transact", lambda body: body())
    monkeypatch.setattr(ndb, "delete_multi", deleted.extend)
    count = sweep._delete_pages("run", NOON, 10)

    assert (count, bool(deleted)) == ((2, True) if is_deleted else (0, False))
    kept = Memory.current.get(run_key("run")).pages_until
    assert kept == (None if kept_s is None else seconds(kept_s))


BUGS = (
    Bug(
        *(attempt._PageAttempt, "_commit", "self.priced = self.clients.meter.cost()", "pass"),
        test_the_cost_of_a_page_is_what_was_spent_since_the_last_commit,
    ),
    Bug(
        *(sweep, "_delete_pages", " or run.pages_until > now_utc", ""),
        test_pages_go_after_their_time_unless_a_retry_reads_them,
        {"until_s": 1, "retry_state": None, "is_deleted": False, "kept_s": 1},
    ),
    Bug(
        *(sweep, "_delete_pages", "retry.state != FINISHED", "False"),
        test_pages_go_after_their_time_unless_a_retry_reads_them,
        {"until_s": 0, "retry_state": RUNNING, "is_deleted": False, "kept_s": 30 * 86_400.0},
    ),
    Bug(
        *(
            sweep,
            "_delete_pages",
            "(heartbeats_of(run_id), pages_of(run_id))",
            "(pages_of(run_id),)",
        ),
        test_pages_go_after_their_time_unless_a_retry_reads_them,
        {"until_s": 0, "retry_state": None, "is_deleted": True, "kept_s": None},
    ),
    Bug(
        *(attempt._PageAttempt, "_found_in", "own in self.receipts.items() if i in still_open"),
        "own in self.receipts.items()",
        test_a_commit_records_nothing_for_an_item_that_has_ended,
    ),
    Bug(
        *(attempt._PageAttempt, "_found_in", "if pair[0] in still_open", ""),
        test_a_commit_records_nothing_for_an_item_that_has_ended,
    ),
    Bug(
        *(receipts, "record", "min(page.attempts, len(delays_s)) - 1"),
        "min(page.attempts, len(delays_s) - 1)",
        test_an_item_waits_as_the_job_says_and_fails_after_its_last_attempt,
    ),
    Bug(
        *(receipts, "record", "page.attempts >= job.max_attempts"),
        "page.attempts > job.max_attempts",
        test_an_item_waits_as_the_job_says_and_fails_after_its_last_attempt,
    ),
    Bug(
        *(receipts, "record", "        reasons.pop(str(position), None)\n", ""),
        test_an_item_waits_as_the_job_says_and_fails_after_its_last_attempt,
    ),
    Bug(
        *(attempt, "_is_not_due", "page.done or ", ""),
        test_a_page_is_too_early_only_while_items_wait_by_a_sound_clock,
    ),
    Bug(
        *(attempt, "_is_not_due", " <= longest", ""),
        test_a_page_is_too_early_only_while_items_wait_by_a_sound_clock,
    ),
    Bug(
        *(turns, "turn_of", "number * len(run.spans) + chain", "number"),
        test_chains_take_turns_at_the_rate_of_their_run,
    ),
    Bug(
        *(turns, "turn_of", "max(pace, MADE_GOOD)", "MADE_GOOD"),
        test_a_run_makes_good_a_minute_or_one_page_of_each_chain,
        {"page_size": 1_000, "late_s": 1_500, "wait_s": 0},
    ),
    Bug(
        *(turns, "turn_of", "linked + pace if is_held_up else due", "due"),
        test_a_run_makes_good_a_minute_or_one_page_of_each_chain,
        {"page_size": 10, "late_s": 61, "wait_s": 15},
    ),
    Bug(
        *(PageLease, "_check_free", "min(MAX_UNRECEIPTED, len(page.open_positions()))"),
        *("MAX_UNRECEIPTED", test_what_a_silent_attempt_may_have_done_is_in_doubt_and_no_more),
        {"count": 3, "doubts": 3},
    ),
    Bug(
        *(PageLease, "_check_free", "page.takeovers += 1", "pass"),
        test_what_a_silent_attempt_may_have_done_is_in_doubt_and_no_more,
        {"count": 3, "doubts": 3},
    ),
    Bug(
        *(PageLease, "_check_free", "self._job.side_effect is not None", "True"),
        test_what_a_silent_attempt_may_have_done_is_in_doubt_and_no_more,
        {"count": 3, "doubts": 3},
    ),
    Bug(
        *(PageLease, "_check_silent", "sign is not None and", "False and"),
        test_a_page_is_taken_from_nobody_that_gives_a_sound_sign_of_life,
    ),
    Bug(
        *(PageLease, "_is_alive", " <= longest", ""),
        test_a_page_is_taken_from_nobody_that_gives_a_sound_sign_of_life,
        errors=(LeasedError,),
    ),
    Bug(
        *(PageLease, "beat", "not self.is_owned(now_utc) or ", ""),
        test_a_lease_is_kept_by_heartbeats_until_it_was_lost_or_its_deadline_came,
    ),
    Bug(
        *(PageLease, "beat", " or now_utc >= self.deadline", ""),
        test_a_lease_is_kept_by_heartbeats_until_it_was_lost_or_its_deadline_came,
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """A1, H4: each guard of a page is for something."""
    bug.check_noticed(monkeypatch)
