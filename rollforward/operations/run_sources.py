"""Runs that an app keeps in rows of its own, in the list of all runs: loads, playbacks, imports.

    def newest(clients: Clients, started_before: datetime | None, limit: int) -> list[Run]:
        query = Import.query().order(-Import.started)
        if started_before is not None:
            query = query.filter(Import.started < started_before.replace(tzinfo=None))
        return [run_of(row) for row in query.fetch(limit)]

    def run_of(row: Import) -> Run:
        started = row.started.replace(tzinfo=UTC)  # ndb stores no zone.
        return IMPORTS.run(row.key.id(), "running", started)

    IMPORTS = RunSource("import", newest, details)

An app registers the source like any other part. The list asks it, and nothing is written for that:
both functions derive what they return from rows that the app keeps anyway.

Lost on failure: nothing.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from google.api_core.exceptions import GoogleAPIError

from rollforward.runtime.clients import Clients
from rollforward.runtime.texts import describe_error
from rollforward.tasks.pattern import Pattern
from rollforward.tasks.runs import (
    Fact,
    Run,
    RunDetails,
    RunLink,
    RunList,
    RunQuery,
    RunState,
    UnknownRunError,
    complete_list,
    merged,
    scanned,
)

__all__ = ["Fact", "Run", "RunDetails", "RunLink", "RunSource", "RunState"]

log = logging.getLogger(__name__)

PATTERN = "app"

Newest = Callable[[Clients, datetime.datetime | None, int], Sequence[Run]]


@dataclass(frozen=True)
class RunSource:
    """One kind of runs that an app keeps itself.

    Args:
        name: Their kind, for example "import".
        newest: Returns runs that started before a time (None: now), the newest first: `limit` of
            them or more, as long as there are any, and all of the same instant. Later ones are
            left out, and any order is put right. All times have a zone, or else the list says
            that these runs cannot be read.
        details: Returns one run by its own id; None: there is none, or no more.
        feeds: The part without an end that they feed, for example a pipeline.
    """

    name: str
    newest: Newest
    details: Callable[[Clients, str], RunDetails | None]
    feeds: RunLink | None = None

    def run(
        self,
        own_id: str,
        state: RunState,
        started: datetime.datetime | None,
        ended: datetime.datetime | None = None,
        *,
        counts: Mapping[str, int] | None = None,
        note: str = "",
        args: str = "",
    ) -> Run:
        """Return a run of this kind.

        Args:
            counts: The number of its items by outcome, as `Run.counts`.
            note: Its present work, or its result, in few words.
            args: Its arguments, as JSON.
        """
        return Run(
            pattern=PATTERN,
            id=f"{self.name}:{own_id}",
            name=self.name,
            state=state,
            args=args,
            started=started,
            ended=ended,
            counts=counts or {},
            expected=sum((counts or {}).values()),
            note=note,
            part_of=self.feeds,
        )


class AppRuns(Pattern[RunSource]):
    """Runs that the app keeps in rows of its own."""

    name = PATTERN
    takes = RunSource
    has_unique_names = True
    can_fail = True

    def runs(self, clients: Clients, parts: Sequence[RunSource], query: RunQuery) -> RunList:
        asked = [part for part in parts if query.name in ("", part.name)]
        return merged([_list_runs(clients, part, query) for part in asked], query.limit)

    def run(self, clients: Clients, parts: Sequence[RunSource], run_id: str) -> RunDetails:
        name, _, own_id = run_id.partition(":")
        sources = [part for part in parts if part.name == name]
        details = sources[0].details(clients, own_id) if sources and own_id else None
        if details is None:
            raise UnknownRunError(run_id)
        _check(details.run)
        return details


def _list_runs(clients: Clients, source: RunSource, query: RunQuery) -> RunList:
    """Return a source's runs; one that fails is a row that says so, and hides no other's.

    Raises:
        GoogleAPIError: a service does not answer.
    """
    try:
        return _read(clients, source, query)
    except GoogleAPIError:
        raise
    except Exception as error:
        log.debug("the runs of %s cannot be listed", source.name, exc_info=True)
        note = f"these runs cannot be listed: {describe_error(error)}"
        is_asked = query.takes(None) and not query.state
        return RunList([source.run("", "unreadable", None, note=note)] if is_asked else ())


def _read(clients: Clients, source: RunSource, query: RunQuery) -> RunList:
    """Return a source's runs; a source may return them in any order, and later ones as well.

    Raises:
        ValueError: one of them cannot be shown.
    """
    limit = scanned(query)
    runs = list(source.newest(clients, query.before, limit))
    for run in runs:
        _check(run)
    earlier = [run for run in runs if not _is_later(run, query)]
    starts = [run.started for run in earlier if run.started is not None]
    last_started = min(starts, default=None) if len(earlier) >= limit else None
    return RunList(complete_list(query, earlier).runs, query.ends_at(last_started))


def _is_later(run: Run, query: RunQuery) -> bool:
    return bool(query.before and run.started and run.started >= query.before)


def _check(run: Run) -> None:
    """Check that a list can show a run.

    Raises:
        ValueError: it cannot.
    """
    if run.state not in get_args(RunState):
        raise ValueError(f"the run {run.id} has the state {run.state!r}, which does not exist")
    for at in (run.started, run.ended, run.waits_until):
        if at is not None and at.utcoffset() is None:
            raise ValueError(f"the run {run.id} has a time without a zone: {at}")
