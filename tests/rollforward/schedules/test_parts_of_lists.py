"""Lists of schedules and of their runs, without a store, and planted bugs."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.runtime.clock import TimeRange
from rollforward.schedules import listing
from rollforward.schedules.entities import MAX_RECENT, RecentTick, ScheduleRow, row_key
from rollforward.tasks.attempt_entities import TaskAttempts, attempts_key
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.stored.arguments import LIFE
from rollforward.tasks.stored.entities import BEGUN, CANCELLED, CancellableTask, handle_key
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
PART: Any = SimpleNamespace(
    name="bills",
    task=SimpleNamespace(path="/now", queue="now"),
    missed="once",
    lane_of=lambda row_id: None,
)
CLIENTS: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: NOON))


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with offline(), Memory():
        yield


def row_of(row_id: str, name: str = "bills", *, in_h: int = 1) -> ScheduleRow:
    return ScheduleRow(
        key=row_key(name, row_id),
        cron="0 0 * * *",
        tz="UTC",
        revision="r1",
        next_at=(NOON + datetime.timedelta(hours=in_h)).replace(tzinfo=None),
    )


def fetching(rows: list[ScheduleRow]) -> Any:
    return SimpleNamespace(fetch=lambda limit: rows[:limit])


# Pages


@pytest.mark.parametrize(("count", "following"), [(1, None), (2, None), (3, "b"), (9, "b")])
def test_a_page_of_users_schedules_is_followed_by_one_with_more(
    monkeypatch: pytest.MonkeyPatch, count: int, following: str | None
) -> None:
    """T3: never by an empty one; each has its last run."""
    rows = [row_of(letter) for letter in "abcdefghi"[:count]]
    rows[0].note_ticks([NOON, NOON + datetime.timedelta(minutes=1)], "/now", "now")
    monkeypatch.setattr(listing, "rows_of", lambda name, after: fetching(rows))
    page = listing.user_schedules(CLIENTS, PART, limit=2)

    assert [state.id for state in page.schedules] == ["a", "b"][:count]
    assert [len(state.runs) for state in page.schedules] == [1, 0][:count]
    assert page.next_after == following


class Daily(SimpleNamespace):
    """A schedule that the code declares."""


def test_pages_of_declared_schedules_show_each_of_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T3: by name, also where all of a page's rows have been read."""
    monkeypatch.setattr(listing, "Schedule", Daily)
    monkeypatch.setattr(
        listing, "_states", lambda clients, shown, runs: [p.name for p, *_ in shown]
    )
    parts: Any = [Daily(name=name) for name in "ecadb"]
    seen: list[Any] = []
    start: str | None = ""
    while start is not None:
        page = listing.declared_schedules(CLIENTS, parts, start_after=start, limit=2)
        seen, start = [*seen, list(page.schedules)], page.next_after

    assert seen == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize(
    ("names", "shown", "end"),
    [
        ("bb", "01", None),
        ("bbb", "01", "01"),
        ("xb", "1", None),
        ("xxx", "", None),
        ("xxxxx", "", "03"),
        ("bxxbb", "03", "03"),
        ("bxxxb", "0", "03"),
    ],
)
def test_a_page_of_due_schedules_goes_on_where_it_has_ended(
    monkeypatch: pytest.MonkeyPatch, names: str, shown: str, end: str | None
) -> None:
    """T3: behind the last one that it shows, or that it has searched; others are left out."""
    called = {"b": "bills", "x": "bills-2"}
    rows = [row_of(str(n), called[letter], in_h=n + 1) for n, letter in enumerate(names)]
    monkeypatch.setattr(listing, "MAX_SEARCHED", 4)
    monkeypatch.setattr(listing, "rows_between", lambda since, until, place: [fetching(rows)])
    cursor = lambda at, id_: id_.rpartition("|")[2]  # noqa: E731
    monkeypatch.setattr(listing, "timed_cursor", cursor)
    page = listing.user_schedules_due(CLIENTS, PART, TimeRange(None, None), limit=2)

    assert "".join(state.id for state in page.schedules) == shown
    assert page.next_after == (end and end[-1])


# Runs


def test_runs_are_listed_newest_first_with_the_path_of_their_time() -> None:
    """T1: of later ticks, too; so many are kept."""
    row = row_of("a")
    times = [NOON + datetime.timedelta(minutes=minutes) for minutes in range(MAX_RECENT)]
    row.note_ticks(times[:2], "/then", "then")
    row.note_ticks(times[2:3], "/now", "now")
    assert [tick.at for tick in row.recent_ticks] == times[2::-1]
    works = [listing._work(PART, row.key.id(), tick) for tick in row.recent_ticks]
    assert [(work.path, work.queue) for work in works] == [
        ("/now", "now"),
        ("/then", "then"),
        ("/then", "then"),
    ]
    row.note_ticks(times[3:], "/now", "now")
    row.note_ticks([NOON], "/now", "now")
    assert [tick.at for tick in row.recent_ticks] == [NOON, *times[:0:-1]]


@pytest.mark.parametrize(
    ("handle", "dead", "state"),
    [
        (None, None, "done"),
        ("", None, "waiting"),
        ("", "first", "dead"),
        ("replay", "first", "waiting"),
        ("replay", "replay", "dead"),
        ("replay", "resolved", "waiting"),
        (None, "resolved", "done"),
    ],
)
def test_a_run_is_dead_while_its_last_dead_task_is_open(
    handle: str | None, dead: str | None, state: str
) -> None:
    """T4: which the handle names, if it died as a replay."""
    row = row_of("a")
    row.note_ticks([NOON], "/now", "now")
    [work] = [listing._work(PART, row.key.id(), tick) for tick in row.recent_ticks]
    if handle is not None:
        Memory.current.put(
            CancellableTask(
                key=handle_key(work.handle), state=BEGUN, dead_id=handle or None, expires="e"
            )
        )
    if dead is not None:
        id_ = work.first_dead_id if dead == "first" else (handle or work.first_dead_id)
        naive = NOON.replace(tzinfo=None)
        letter = DeadTask(key=ndb.Key(DeadTask, id_), created=naive, updated=naive)
        letter.path = letter.queue = letter.task_name = letter.body = letter.reason = "x"
        letter.resolved = dead == "resolved"
        Memory.current.put(letter)
    [run] = listing._runs(CLIENTS, [work])
    assert run.state == state


@pytest.mark.parametrize(
    ("age", "state"), [(LIFE, "done"), (LIFE + datetime.timedelta(seconds=1), "unknown")]
)
def test_a_run_without_a_trace_is_done_for_as_long_as_a_trace_is_kept(
    age: datetime.timedelta, state: str
) -> None:
    """T4: of earlier ones nothing is known."""
    row = row_of("a")
    row.note_ticks([NOON - age], "/now", "now")
    works = [listing._work(PART, row.key.id(), tick) for tick in row.recent_ticks]

    assert [run.state for run in listing._runs(CLIENTS, works)] == [state]


@pytest.mark.parametrize(("error", "shown"), [("Reject", "Reject"), ("", "x" * 100)])
def test_a_dead_run_says_its_error_or_else_how_its_reason_begins(error: str, shown: str) -> None:
    """T4: as an entry of the dead tasks does."""
    [work] = [listing._work(PART, "bills|a", RecentTick(NOON, "r1"))]
    dead = SimpleNamespace(
        resolved=False, error=error, reason="x" * 101, key=SimpleNamespace(id=lambda: "dead")
    )
    run = listing._run(work, None, dead, None, NOON)

    assert (run.state, run.dead_id, run.error, run.task) == ("dead", "dead", shown, work.task_name)


@pytest.mark.parametrize(
    ("handle", "failures", "error", "shown"),
    [
        (BEGUN, 3, "OSError: no printer", ("retrying", 3, "OSError: no printer")),
        (BEGUN, 1, None, ("retrying", 1, "")),
        (BEGUN, 0, None, ("waiting", 0, "")),  # Its fourth delivery runs.
        (CANCELLED, 3, "OSError: no printer", ("deleted", 0, "")),
        (None, 3, "OSError: no printer", ("done", 0, "")),
    ],
)
def test_a_run_that_has_failed_and_is_tried_again_says_how_often(
    handle: str | None, failures: int, error: str | None, shown: tuple[str, int, str]
) -> None:
    """T4: and by which error last."""
    [work] = [listing._work(PART, "bills|a", RecentTick(NOON, "r1"))]
    if handle is not None:
        key = handle_key(work.handle)
        Memory.current.put(CancellableTask(key=key, state=handle, expires="e"))
    naive = NOON.replace(tzinfo=None)
    key = attempts_key(work.first_dead_id)
    Memory.current.put(
        TaskAttempts(key=key, failures=failures, error=error, first=naive, expires=naive)
    )
    [run] = listing._runs(CLIENTS, [work])

    assert (run.state, run.failures, run.error) == shown


_DECLARED = test_pages_of_declared_schedules_show_each_of_them_once
_PAGE = test_a_page_of_users_schedules_is_followed_by_one_with_more
_DUE = test_a_page_of_due_schedules_goes_on_where_it_has_ended
_NEWEST = test_runs_are_listed_newest_first_with_the_path_of_their_time
_DEAD = test_a_run_is_dead_while_its_last_dead_task_is_open
BUGS = (
    Bug(*(listing, "declared_schedules", "read[-1].name", "read[-2].name", _DECLARED)),
    Bug(*(listing, "user_schedules", "len(rows) > limit", "len(rows) >= limit", _PAGE),
        {"count": 2, "following": None}),
    Bug(*(listing, "user_schedules_due", 'f"{part.name}|"', "part.name", _DUE),
        {"names": "xb", "shown": "1", "end": None}),
    Bug(*(listing, "user_schedules_due", "rows[MAX_SEARCHED - 1]", "rows[MAX_SEARCHED]", _DUE),
        {"names": "bxxxb", "shown": "0", "end": "03"}),
    Bug(*(listing, "_work", "recent.path or ", "", _NEWEST)),
    Bug(*(ScheduleRow, "note_ticks", "reversed(ticks)", "ticks", _NEWEST)),
    Bug(*(listing, "_run", " and not dead.resolved", "", _DEAD),
        {"handle": "replay", "dead": "resolved", "state": "waiting"}),
    Bug(*(listing, "_runs", 'getattr(handle, "dead_id", None) or ', "", _DEAD),
        {"handle": "replay", "dead": "replay", "state": "dead"}),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """T1, T3, T4: each part of a list is for something."""
    bug.check_noticed(monkeypatch)
