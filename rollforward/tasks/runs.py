"""Runs: work of many items, as every pattern shows it to operators.

A pattern that has runs overrides `runs`, `run` and `control_run` of `Pattern`. `GET /control/runs`
lists the runs of all patterns (rollforward/flask/endpoints/runs.py), and the local console
shows them without knowing the app.

A task that works for a run has the field `run_id` in its arguments: so the run is found from the
task, and its attempts from the run.

Source: the list of workflows of Temporal's web UI; batches in Oban's.
"""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from google.api_core.exceptions import GoogleAPIError

from rollforward.runtime.clock import (
    ANY_TIME,
    TimeRange,
    aware_utc,
    naive_utc,
    parse_time,
    time_text,
)
from rollforward.runtime.texts import describe_error

# Of a key's id or name.
MAX_KEY_BYTES = 1_500
_TIME_TEXT = re.compile(r"[0-9]{8}T[0-9]{12}")

log = logging.getLogger(__name__)

RunState = Literal["running", "failed", "finished", "cancelled", "unreadable"]
RunVerb = Literal["cancel", "resume", "retry", "rebuild"]
LetterVerb = Literal["replay", "delete"]

# A failed run waits for a person; only those of some patterns can be it. An unreadable one has a
# row that this version of the code does not understand; no list is asked for those.
STATES: tuple[RunState, ...] = ("running", "failed", "finished", "cancelled")
VERBS: tuple[RunVerb, ...] = ("cancel", "resume", "retry", "rebuild")
LETTER_VERBS: tuple[LetterVerb, ...] = ("replay", "delete")
# What may become of an item, and its letter in `RunPart.items`.
OUTCOMES = {"done": "d", "skipped": "s", "failed": "f", "retrying": "r", "waiting": "."}

MAX_LISTED = 100
# Of the name of a step of a run.
MAX_STEP_BYTES = 200
# A list that is filtered looks at so many runs at a time.
MAX_SCANNED = 200

R = TypeVar("R")  # A row of a run.


class UnknownRunError(LookupError):
    """There is no run of this id."""


class UnknownLetterError(LookupError):
    """There is no dead letter of this id, or no more."""


class BadCursorError(ValueError):
    """The text is no cursor of a list."""


def timed_cursor(at: datetime.datetime, row_id: str) -> str:
    """Return the cursor behind a row of a list by time and id; the time is naive."""
    return f"{time_text(at)}|{row_id}"


def parse_cursor(cursor: str, refusal: str) -> tuple[datetime.datetime, str] | None:
    """Return the time and the id of a cursor by `timed_cursor`; None for "", the first page.

    Args:
        refusal: The text of the error.

    Raises:
        BadCursorError: `timed_cursor` did not make it.
    """
    if not cursor:
        return None
    at, _, row_id = cursor.partition("|")
    try:
        if _TIME_TEXT.fullmatch(at) and 1 <= len(row_id.encode()) <= MAX_KEY_BYTES:
            return parse_time(at), row_id
    except ValueError:  # No such day, or half of a surrogate pair.
        pass
    raise BadCursorError(refusal)


class LetterRefusedError(Exception):
    """A dead letter that cannot be replayed; the text says why."""


class RunRefusedError(Exception):
    """This cannot be done to a run as it is now; the text says why."""


@dataclass(frozen=True)
class RunLink:
    """Another run, as a fact of a run or a cell of its table."""

    pattern: str
    id: str


@dataclass(frozen=True)
class Run:
    """One run, as a list shows it.

    Attributes:
        pattern: The name of its pattern.
        name: The kind of work: the name of its job, for example.
        args: Its arguments, as JSON.
        started: None: it works without an end.
        counts: How many items there are of each of OUTCOMES.
        expected: How many items there will be, as far as is known.
        is_partial: Whether there may be more items than were counted: to keep the list quick, or
            because a run finds its items on its way.
        verbs: Actions that it allows now.
        note: Its present work or wait, in words of its pattern; "": its state says it all.
        waits_until: The end of that wait.
        reason: The cause of its failure, its rejection, or its wait for other code.
        part_of: The run that started it, or waits for it.
    """

    pattern: str
    id: str
    name: str
    state: RunState
    args: str
    started: datetime.datetime | None
    ended: datetime.datetime | None
    counts: Mapping[str, int]
    expected: int
    is_partial: bool = False
    retry_of: str | None = None
    retried_by: str | None = None
    verbs: Sequence[RunVerb] = ()
    note: str = ""
    waits_until: datetime.datetime | None = None
    reason: str = ""
    part_of: RunLink | None = None


def named_run(pattern: str, name: str, verbs: Sequence[RunVerb] = ()) -> Run:
    """Return a part that works without an end, by its name."""
    return Run(pattern, name, name, "running", "", None, None, {}, 0, verbs=verbs)


@dataclass(frozen=True)
class RunPart:
    """Items that one task works on: a letter of OUTCOMES for each, and when it last got on."""

    label: str
    items: str
    attempts: int
    progressed: datetime.datetime


Fact = float | str | RunLink


@dataclass(frozen=True)
class RunSpan:
    """A step of a run on its axis of time.

    Attributes:
        outcome: One of OUTCOMES.
        ended: None: it has not ended.
        is_wait: True for a wait, which occupies no worker.
    """

    label: str
    outcome: str
    began: datetime.datetime
    ended: datetime.datetime | None
    is_wait: bool = False


@dataclass(frozen=True)
class RunIssue:
    """An item that was not simply done, and why."""

    item: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class RunBranch:
    """A run in the tree of a run.

    Attributes:
        depth: The number of runs above it, as far as they are known.
        left_out: Whether it may have started runs that are not shown.
    """

    depth: int
    run: Run
    left_out: bool = False


@dataclass(frozen=True)
class RunDetails:
    """A run with its parts in order, the first of its issues, and its cost so far.

    Attributes:
        numbers: Facts of its pattern, by name; a time is in seconds since 1970.
        rows: A table of its pattern, each row by the names of its columns; times as in `numbers`.
        left_out: The number of rows before these that are not shown.
        starts: Names in the first column from which the run can be retried now, in their order.
        spans: Its last steps, for a picture of them.
        result: Its result, as JSON.
        tree: The runs above it, itself, and those below it; empty: it is alone.
        has_letters: Whether it keeps dead letters: `Registry.letters` lists them.
        has_all_parts: Whether `parts` is complete. A long run has more, and an old run's are
            deleted.
    """

    run: Run
    parts: Sequence[RunPart] = ()
    issues: Sequence[RunIssue] = ()
    cost: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, Fact] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Fact]] = ()
    left_out: int = 0
    starts: Sequence[str] = ()
    spans: Sequence[RunSpan] = ()
    result: str = ""
    tree: Sequence[RunBranch] = ()
    has_letters: bool = False
    has_all_parts: bool = True


@dataclass(frozen=True)
class Letter:
    """A dead letter: what a part gave up, kept until it is replayed or deleted.

    Attributes:
        id: Its own within its part.
        name: Words for a list: the key of a record, the tag of an item.
        error: Why it was given up.
        body: Its content, as text.
        died: When it was given up.
        numbers: Facts of its pattern, by name; a time is in seconds since 1970.
    """

    id: str
    name: str
    error: str
    body: str
    died: datetime.datetime
    numbers: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class LetterQuery:
    """A query for a page of dead letters.

    Attributes:
        cursor: Of the page before; "": the first page.
        limit: At most how many.
        died: Only letters that died in this time.
    """

    cursor: str = ""
    limit: int = 20
    died: TimeRange = ANY_TIME


@dataclass(frozen=True)
class LetterPage:
    """Dead letters, and the cursor of the next page; "": there is none.

    A page may have fewer than its limit, or none, and a next one nevertheless: where letters are in
    another order than their deaths, a page of a time reads a bounded number of them.

    Attributes:
        is_by_age: Whether the letters are in the order of their deaths.
    """

    letters: Sequence[Letter] = ()
    next_cursor: str = ""
    is_by_age: bool = False


@dataclass(frozen=True)
class NamedPart:
    """A part that works without an end: `Registry.run` shows it by its name."""

    pattern: str
    id: str


@dataclass(frozen=True)
class RunQuery:
    """A query for runs, the newest first.

    Attributes:
        before: Only runs that started earlier.
        since: Only runs that started then or later.
        state: One of STATES; "" for all.
        name: One kind of work; "" for all.
        limit: How many, about: runs of the same instant are never torn apart, and those without
            a start do not count.
        pattern: One pattern; "" for all.
        max_reads: A bound of the rows that a pattern reads, about; 0: the pattern's own. The eight
            rows of totals of an unfinished run are read all the same.
    """

    before: datetime.datetime | None = None
    state: str = ""
    name: str = ""
    limit: int = 20
    max_reads: int = 0
    pattern: str = ""
    since: datetime.datetime | None = None

    def takes(self, started: datetime.datetime | None) -> bool:
        """Return whether a run that started then is in the time; one without a start is in any."""
        times = TimeRange(self.since, self.before)
        return times.has(started) if started is not None else not times

    def ends_at(self, next_before: datetime.datetime | None) -> datetime.datetime | None:
        """Return where the next list begins; None: nothing that started earlier is asked for."""
        is_over = self.since is not None and next_before is not None and next_before <= self.since
        return None if is_over else next_before


@dataclass(frozen=True)
class RunList:
    """Runs, the newest first, and where the next list begins; None: there are no more."""

    runs: Sequence[Run] = ()
    next_before: datetime.datetime | None = None


def readable(
    pattern: str,
    run_id: str,
    name: str,
    started: datetime.datetime | None,
    read: Callable[[], Run],
) -> Run:
    """Return a run, or that its row cannot be read: one strange row hides none of the others.

    Raises:
        GoogleAPIError: a service does not answer.
    """
    try:
        return read()
    except GoogleAPIError:
        raise
    except Exception as error:
        log.debug("the run %s of %s cannot be read", run_id, pattern, exc_info=True)
        return unreadable_run(pattern, run_id, name, started, error)


def unreadable_run(
    pattern: str, run_id: str, name: str, started: datetime.datetime | None, error: Exception
) -> Run:
    """Return a run of which an error tells all that is known."""
    reason = f"its row cannot be read: {describe_error(error)}"
    return Run(pattern, run_id, name, "unreadable", "", started, None, {}, 0, reason=reason)


def complete_list(query: RunQuery, runs: Sequence[Run]) -> RunList:
    """Return what a query asks for of runs that are all in memory."""
    matching = [
        run
        for run in runs
        if query.state in ("", run.state)
        and query.name in ("", run.name)
        and query.takes(run.started)
    ]
    return RunList(sorted(matching, key=_started, reverse=True))


def scanned(query: RunQuery) -> int:
    """Return how many rows a list of a query reads: more than it shows, if it is filtered."""
    if not (query.state or query.name):
        return query.limit
    return min(MAX_SCANNED, query.max_reads // 2) if query.max_reads else MAX_SCANNED


def latest_rows(
    query: RunQuery,
    rows_before: Callable[[datetime.datetime | None], Any],
    rows_at: Callable[[datetime.datetime], Any],
    begun: Callable[[R], datetime.datetime],
    matches: Callable[[R], bool],
) -> tuple[list[R], datetime.datetime | None]:
    """Return the rows of a list, the newest first, and where the next list begins.

    Of runs that began together none is left out, nor listed twice.

    Args:
        rows_before: Returns the query of the rows that began before a time (naive; None: of all).
        rows_at: Returns the query of the rows that began at one.
        begun: Returns when a row began, naive.
    """
    limit = scanned(query)
    rows: list[R] = rows_before(naive_utc(query.before) if query.before else None).fetch(limit + 1)
    next_before = None
    if len(rows) > limit:
        next_before = begun(rows[limit - 1])
        rows = [row for row in rows if begun(row) > next_before]
        rows += rows_at(next_before).fetch()
    shown = [row for row in rows if matches(row)]
    if len(shown) > query.limit:
        next_before = begun(shown[query.limit - 1])
        shown = [row for row in shown if begun(row) >= next_before]
    if query.since is not None:
        since = naive_utc(query.since)
        shown = [row for row in shown if begun(row) >= since]
    return shown, query.ends_at(aware_utc(next_before))


def merged(lists: Sequence[RunList], limit: int) -> RunList:
    """Return the newest runs of several lists as one.

    Each list is whole down to its `next_before`: what is older than the youngest of these may be
    missing a neighbour, and is left to the next list. Runs without a start come first, and are not
    counted: only the first list has them, and no list begins at one.
    """
    ends = [run_list.next_before for run_list in lists if run_list.next_before is not None]
    whole_until = max(ends, default=None)
    runs = sorted((run for run_list in lists for run in run_list.runs), key=lambda run: run.id)
    undated = [run for run in runs if run.started is None]
    dated = sorted((run for run in runs if run.started is not None), key=_started, reverse=True)
    if whole_until is not None:
        dated = [run for run in dated if _started(run) >= whole_until]
    if len(dated) <= limit:
        return RunList([*undated, *dated], whole_until)
    oldest = _started(dated[limit - 1])
    shown = [run for run in dated if _started(run) >= oldest]
    return RunList([*undated, *shown], oldest if len(shown) < len(dated) else whole_until)


def _started(run: Run) -> datetime.datetime:
    return run.started or datetime.datetime.max.replace(tzinfo=datetime.UTC)
