"""Turns, ends, looks and changes of a run, without a store, and planted bugs."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.continuations import runs, sweep
from rollforward.continuations.entities import (
    CANCELLED,
    FINISHED,
    PAGES_KEPT_FOR,
    RUNNING,
    ContinuationPage,
    ContinuationRun,
    page_key,
    run_key,
)
from rollforward.continuations.pages import attempt, closing
from rollforward.continuations.pages.attempt import CommitKind, PageArgs
from rollforward.continuations.pages.lease import LeasedError
from rollforward.continuations.pages.receipts import receipt_of
from rollforward.continuations.sweep import OpenPages
from rollforward.runtime.channel.rpc import Cost
from rollforward.runtime.process.process_state import ProcessState
from rollforward.tasks.errors import Retry, Unavailable
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug
from tests.rollforward.continuations.walk_jobs import APPLY

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  As Datastore's times are.
JOB = replace(APPLY, retry_delays_s=(10.0, 60.0), lease_s=6.0)


class Machine:
    """The clients of a process at noon, whose queue knows some names already."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.clock = SimpleNamespace(now=lambda: seconds(self.at_s).replace(tzinfo=datetime.UTC))
        self.meter = SimpleNamespace(cost=Cost)
        self.process_state = ProcessState()


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with offline(), Memory():
        for module in (closing, runs, sweep):
            monkeypatch.setattr(module, "transact", lambda body: body())
        yield


def seconds(at_s: float) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=at_s)


def put_run(run_id: str = "run", **values: Any) -> ContinuationRun:
    given = {"spans": [["", "m"], ["m", None]], "state": RUNNING, "started": NOON, **values}
    row = ContinuationRun(key=run_key(run_id), job=JOB.name, args="{}", page_size=2, **given)
    Memory.current.put(row)
    return row


def run_of(run_id: str = "run") -> ContinuationRun:
    row = Memory.current.get(run_key(run_id))
    assert isinstance(row, ContinuationRun)
    return row


def page_of(number: int, letters: str = "d", chain: int = 0, **values: Any) -> ContinuationPage:
    given = {"done": "w" not in letters, "next": str(number + 1)}
    return ContinuationPage(
        key=page_key("run", chain, number),
        after=str(number),
        load_from="",
        items=[str(position) for position in range(len(letters))],
        receipts=letters,
        updated_at=NOON,
        progressed_at=NOON,
        **{**given, **values},
    )


# Turns


@pytest.mark.parametrize(
    ("reason", "in_s", "is_new", "comes_again"),
    [
        ("again", 60, True, False),
        ("again", 29, False, True),
        ("again", 30, False, False),
        ("leased", 2, False, True),
        ("leased", 3, False, False),
        ("leased", -5, False, True),
    ],
)
def test_a_task_that_came_early_is_not_its_own_follower(
    monkeypatch: pytest.MonkeyPatch, reason: str, in_s: float, is_new: bool, comes_again: bool
) -> None:
    """A1: the one that exists may be this one; of a time far ahead it is another."""
    delays: list[float] = []

    def enqueue(clients: object, args: object, name: object, delay_s: float) -> bool:
        delays.append(delay_s)
        return is_new

    monkeypatch.setattr(attempt, "page_task", lambda job: SimpleNamespace(enqueue=enqueue))
    machine: Any = Machine()
    with pytest.raises(Retry) if comes_again else contextlib.nullcontext():
        attempt._schedule(machine, JOB, PageArgs("run", 0, 0, ""), seconds(in_s), reason, 1)
    assert delays == [max(0.0, in_s) + attempt.CLOCK_SLACK_S]


def test_who_is_locked_out_has_linked_the_next_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A4: the owner of the lease may be dead; and it comes again when the lease ends."""
    told: list[str] = []

    def locked(mine: object, page: object) -> None:
        raise LeasedError("run:0:0", seconds(6))

    monkeypatch.setattr(attempt._PageAttempt, "make", locked)
    monkeypatch.setattr(attempt._PageAttempt, "__post_init__", lambda mine: setattr(
        mine, "lease", SimpleNamespace(beat=None)))  # fmt: skip
    monkeypatch.setattr(attempt, "_link", lambda *args: told.append("linked"))
    monkeypatch.setattr(attempt, "_schedule", lambda *args: told.append(args[4]))
    machine: Any = Machine()
    machine.heart = SimpleNamespace(heartbeat=lambda beat, every_s: contextlib.nullcontext())
    put_run()
    Memory.current.put(page_of(0, "w"))
    attempt.work_page(machine, JOB, PageArgs("run", 0, 0, ""))
    assert told == ["linked", "leased"]


@pytest.mark.parametrize("is_told", [False, True])
def test_a_job_is_told_by_whoever_finds_that_nobody_did(
    monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """A3: the attempt that ended the run may have died; a run that was told keeps its totals."""
    told: list[str] = []
    monkeypatch.setattr(attempt, "finish", lambda clients, job, run: told.append(run.key.id()))
    put_run(state=FINISHED, totals={"failed": 0} if is_told else None)
    attempt.work_page(Machine(), JOB, PageArgs("run", 0, 0, ""))  # type: ignore[arg-type]
    assert told == ([] if is_told else ["run"])


@pytest.mark.parametrize(
    ("at_s", "is_owned", "owner", "stops"),
    [(0, True, "mine", False), (0, False, "mine", False), (0, False, None, True),
     (5, True, "mine", True)],
)  # fmt: skip
def test_an_attempt_stops_at_its_deadline_and_when_its_run_was_cancelled(
    at_s: float, is_owned: bool, owner: str | None, stops: bool
) -> None:
    """H4: before that a lost lease is renewed by a commit."""
    machine: Any = Machine()
    machine.at_s = at_s
    mine: Any = object.__new__(attempt._PageAttempt)
    mine.clients, mine.key, mine.args = machine, page_key("run", 0, 0), PageArgs("run", 0, 0, "")
    mine.lease = SimpleNamespace(deadline=seconds(5), is_owned=lambda now_utc: is_owned)
    mine._commit = lambda: SimpleNamespace(owner=owner)
    with pytest.raises(Retry) if stops else contextlib.nullcontext():
        mine._check_lease()


@pytest.mark.parametrize(
    ("owner", "kind", "took_s", "became"),
    [
        ("mine", CommitKind.LAST, 0, (False, False, 0, 1)),
        ("mine", CommitKind.LAST, 6, (False, False, 3, 1)),
        ("mine", CommitKind.LAST, 7, (False, False, 3, 1)),
        ("other", CommitKind.LAST, 0, None),
        (None, CommitKind.INTERIM, 0, None),
    ],
)
def test_a_commit_is_its_own_once_and_closes_no_page_with_open_items(
    monkeypatch: pytest.MonkeyPatch,
    owner: str | None,
    kind: CommitKind,
    took_s: float,
    became: tuple[bool, bool, int, int] | None,
) -> None:
    """H4: a reply that was lost repeats nothing; a lease stays doubled while work is slow."""
    machine: Any = Machine()
    mine: Any = object.__new__(attempt._PageAttempt)
    mine.args, mine.key, mine.job = PageArgs("run", 0, 0, ""), page_key("run", 0, 0), JOB
    mine.run = SimpleNamespace(state=RUNNING, has_slots=False)
    mine.clients, mine.commits, mine.doubts, mine.priced = machine, 0, 1, Cost()
    mine.committed = mine.looked = machine.clock.now()
    mine.receipts = {0: receipt_of(None)}
    page = page_of(0, "www", owner=owner, takeovers=3)

    def commit(change: Any, is_alone: bool) -> ContinuationPage:
        change(page)
        return change(page)  # type: ignore[no-any-return]  Its reply was lost.

    monkeypatch.setattr(attempt, "is_closed", lambda *args: True)
    nothing = lambda page, **options: None  # noqa: E731
    mine.lease = SimpleNamespace(owner="mine", renew=nothing, finish=nothing, commit=commit)
    machine.at_s = took_s
    mine.looked = machine.clock.now()
    if became is None:
        with pytest.raises(Retry):
            mine._commit(kind)
        return
    mine._commit(kind)
    assert (page.done, page.closed, page.takeovers, page.in_doubt) == became


# Ends


def test_a_run_has_finished_with_its_last_chain_and_is_told_until_it_was() -> None:
    """A3: who ends a chain again tells the job if nobody has."""
    put_run()
    machine: Any = Machine()
    machine.at_s = 7
    ends = [closing._end_chain(machine, "run", chain) for chain in (1, 1, 0, 0)]
    run = run_of()
    assert ends == [False, False, True, True]
    assert (run.state, run.untold, run.ended, run.chains_ended) == (
        *(FINISHED, True, seconds(7)),
        [1, 0],
    )
    run.totals = {"failed": 0}
    Memory.current.put(run)
    assert not closing._end_chain(machine, "run", 0)


# Looks


@pytest.mark.parametrize(
    ("pages", "ended", "stalled"),
    [
        ("", [], ["run 0"]),
        ("d", [], ["run 0", "run 1"]),
        ("dd", [], ["run 0", "run 2"]),
        ("cc", [], ["run 2"]),
        ("c-c", [], ["run 1", "run 3"]),
        ("ccw", [], ["run 2", "run 3"]),
        ("cdd", [], ["run 1", "run 3"]),
        ("cccd", [], ["run 3", "run 4"]),
        ("cc.", [], ["run 2"]),
        ("cc.", [0], []),
    ],
)
def test_a_look_finds_each_page_that_needs_a_task(
    monkeypatch: pytest.MonkeyPatch, pages: str, ended: list[int], stalled: list[str]
) -> None:
    """A3: open ones, the first one that may be closed, one that is missing, and an open end.

    A page is closed (c), done (d), at work (w), missing (-), or the closed last one (.).
    """
    rows = []
    for number, letter in enumerate(pages):
        ends = {"next": None} if letter == "." else {}
        if letter != "-":
            receipts = "w" if letter == "w" else "d"
            rows.append(page_of(number, receipts, closed=letter in "c.", **ends))

    def find(run_id: str, chain: int, first: int) -> Any:
        behind = [row for row in rows if row.number >= first]
        return SimpleNamespace(fetch=lambda limit: behind[:limit])

    monkeypatch.setattr(sweep, "pages_of_chain", find)
    run = put_run(spans=[["", None]], chains_ended=ended)
    look = OpenPages.at(run)
    assert [f"{args.run_id} {args.number}" for args, _ in look.stalled] == stalled

    for budget in (2, 3):  # In parts, each of which begins where the last one ended.
        found, run.swept_to = list[str](), None
        for _ in range(9):
            part = OpenPages.at(run, max_pages=budget)
            found += [f"{args.run_id} {args.number}" for args, _ in part.stalled]
            run.swept_to = part.goes_on_at
            if run.swept_to is None:
                break
        assert list(dict.fromkeys(found)) == stalled


def test_the_next_look_begins_with_pages_that_could_not_be_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A6: of each chain."""
    look = OpenPages(put_run(), 10, closed={"0": 9, "1": 9})
    look.forgotten = [page_of(4), page_of(6), page_of(5, chain=1), page_of(2)]
    left = [page_key("run", 0, 6), page_key("run", 1, 5)]
    monkeypatch.setattr(sweep, "count_missed", lambda clients, run_id, keys: left)
    look.count_missed(Machine())  # type: ignore[arg-type]
    assert look.closed == {"0": 6, "1": 5}


# Changes


@pytest.mark.parametrize("state", [RUNNING, CANCELLED, FINISHED])
def test_only_a_run_that_runs_is_cancelled_and_only_a_cancelled_one_resumed(state: str) -> None:
    """A3: a run that has finished stays so."""
    put_run(state=state)
    runs.cancel("run")
    assert run_of().state == (FINISHED if state == FINISHED else CANCELLED)
    put_run(state=state)
    runs._transition("run", CANCELLED, RUNNING)
    assert run_of().state == (FINISHED if state == FINISHED else RUNNING)


@pytest.mark.parametrize("error", [None, Unavailable("away")])
def test_a_run_is_launched_as_it_is_stored_and_later_if_the_queue_is_away(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """A3: with a task for each of its chains, however many the draft of a caller has."""
    created: list[Any] = []
    later: list[Any] = []

    def enqueue_many(clients: object, args: Any, names: object) -> None:
        if error is not None:
            raise error
        created.extend(args)

    page_task = SimpleNamespace(enqueue_many=enqueue_many, message=lambda args, name: args)
    monkeypatch.setattr(runs, "page_task", lambda job: page_task)
    create = lambda clients, tasks: later.extend(tasks)  # noqa: E731
    monkeypatch.setattr(runs, "outbox", SimpleNamespace(create_later=create))
    put_run(spans=[[str(chain), None] for chain in range(12)])
    with pytest.raises(Unavailable) if error else contextlib.nullcontext():
        runs.launch(Machine(), JOB, "run")  # type: ignore[arg-type]
    heads = [PageArgs("run", chain, 0, str(chain)) for chain in range(12)]
    assert (created, later) == (([], heads) if error else (heads, []))


def test_a_run_is_retried_once_and_keeps_its_pages_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A1: a second call finds the retry as it is by then."""
    machine: Any = Machine()
    launched: list[str] = []
    monkeypatch.setattr(runs, "launch", lambda clients, job, run_id: launched.append(run_id))
    totals = SimpleNamespace(totals=SimpleNamespace(failed=3))
    monkeypatch.setattr(runs, "progress", lambda run_id, dots: totals)

    def new_run(clients: object, job: object, args: object, *, run_id: str, **o: Any) -> Any:
        return ContinuationRun(
            key=run_key(run_id), job=JOB.name, args="{}", spans=[["", None]], page_size=2,
            started=NOON, state=RUNNING, retry_of=o["retry_of"], expected=o["expected"],
        )  # fmt: skip

    monkeypatch.setattr(runs, "new_run", new_run)
    load: Any = SimpleNamespace(load=lambda args: None)
    put_run(state=FINISHED, ended=NOON, pages_until=seconds(60))
    child_id = runs.retry_failed(machine, {JOB.name: load}, "run")
    assert (run_of().retried_by, run_of().pages_until) == (child_id, NOON + PAGES_KEPT_FOR)
    child = run_of(child_id)
    assert (child.retry_of, child.state, child.expected) == ("run", RUNNING, 3)
    child.state = FINISHED
    Memory.current.put(child)

    assert runs.retry_failed(machine, {JOB.name: load}, "run") == child_id
    assert run_of(child_id).state == FINISHED
    assert launched == [child_id] * 2


_EARLY = test_a_task_that_came_early_is_not_its_own_follower
_OWN = test_a_commit_is_its_own_once_and_closes_no_page_with_open_items
_LOOK = test_a_look_finds_each_page_that_needs_a_task
_END = test_a_run_has_finished_with_its_last_chain_and_is_told_until_it_was
_MINE = {"owner": "mine", "kind": CommitKind.LAST, "took_s": 0, "became": (False, False, 0, 1)}
BUGS = (
    Bug(*(attempt, "_schedule", "not is_new and wait_s < EARLY_S[reason]", "False", _EARLY),
        {"reason": "again", "in_s": 29, "is_new": False, "comes_again": True}),
    Bug(*(attempt, "work_page", "        _link(clients, job, run, args, page)", "        pass"),
        test_who_is_locked_out_has_linked_the_next_page),
    Bug(*(attempt, "work_page", "        finish(clients, job, run)", "        pass"),
        test_a_job_is_told_by_whoever_finds_that_nobody_did, {"is_told": False}),
    Bug(*(attempt._PageAttempt, "_check_lease", "now_utc >= self.lease.deadline", "False"),
        test_an_attempt_stops_at_its_deadline_and_when_its_run_was_cancelled,
        {"at_s": 5, "is_owned": True, "owner": "mine", "stops": True}),
    Bug(*(attempt._PageAttempt, "_commit", "page.committed_by == proof", "False", _OWN), _MINE),
    Bug(*(attempt._PageAttempt, "_commit", " or page.owner != self.lease.owner", "", _OWN),
        {**_MINE, "owner": "other", "became": None}),
    Bug(*(attempt._PageAttempt, "_commit", " and self._was_quick()", "", _OWN),
        {**_MINE, "took_s": 6, "became": (False, False, 3, 1)}),
    Bug(*(attempt._PageAttempt, "_commit", "page.done and can_close", "can_close", _OWN), _MINE),
    Bug(*(closing, "_end_chain", " and run.totals is None", "", _END)),
    Bug(*(closing, "_end_chain", "run.state, run.untold = FINISHED, True", "run.state = FINISHED",
          _END)),
    Bug(*(OpenPages, "_page", " or follower.number != page.number + 1", "", _LOOK),
        {"pages": "c-c", "ended": [], "stalled": ["run 1", "run 3"]}),
    Bug(*(OpenPages, "_has_work", "page.next is None and", "False and", _LOOK),
        {"pages": "cc.", "ended": [], "stalled": ["run 2"]}),
    Bug(*(OpenPages, "_chain", "pages[-2].number", "pages[-1].number", _LOOK),
        {"pages": "cccd", "ended": [], "stalled": ["run 3", "run 4"]}),
    Bug(*(OpenPages, "count_missed", "min(self.closed[chain], page.number)", "self.closed[chain]"),
        test_the_next_look_begins_with_pages_that_could_not_be_counted),
    Bug(*(runs, "_transition", "run.state == expected", "True"),
        test_only_a_run_that_runs_is_cancelled_and_only_a_cancelled_one_resumed,
        {"state": FINISHED}),
    Bug(*(runs, "launch", "        outbox.create_later(clients, tasks)\n", ""),
        test_a_run_is_launched_as_it_is_stored_and_later_if_the_queue_is_away,
        {"error": Unavailable("away")}),
    Bug(*(runs, "retry_failed", "existing is not None", "False"),
        test_a_run_is_retried_once_and_keeps_its_pages_for_that),
    Bug(*(runs, "retry_failed", "run.pages_until = now_utc + PAGES_KEPT_FOR", "pass"),
        test_a_run_is_retried_once_and_keeps_its_pages_for_that),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """A1, A3, A4, A6, H4: each decision of a run is for something."""
    bug.check_noticed(monkeypatch)
