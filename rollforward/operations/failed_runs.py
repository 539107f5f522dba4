"""Failed runs of steps, like flows, retried many at once: a run of a continuation.

Each is retried by a commit of its own, which knows the run that retries it: once, however often
that run's task comes. It takes the runs that were started before it and have failed. One that
fails again is left to the next.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Protocol

import pydantic

from rollforward.continuations.jobs import Job, RefusedItemError, SkippedItemError
from rollforward.continuations.runs import start
from rollforward.continuations.sources import Slice, Span
from rollforward.operations.bulk import MAX_SELECTED, MAX_TEXT_CHARS, PAGE_SIZE, selected_ids
from rollforward.runtime.clients import Clients
from rollforward.runtime.process.current import current_clients
from rollforward.tasks.runs import (
    Run,
    RunDetails,
    RunList,
    RunQuery,
    RunRefusedError,
    RunVerb,
    UnknownRunError,
)

JOB = "failed-runs"


class Runs(Protocol):
    """The runs of an app: its registry."""

    def runs(self, clients: Clients, query: RunQuery) -> RunList: ...

    def run(self, clients: Clients, pattern: str, run_id: str) -> RunDetails: ...

    def control_run(
        self, clients: Clients, pattern: str, run_id: str, verb: RunVerb, *, request_id: str
    ) -> str: ...


@dataclass(frozen=True)
class FailedRunsArgs:
    """Arguments of a run: the pattern and the name, "" for all, or the ids that were selected."""

    pattern: Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]
    name: Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]
    started_before: datetime.datetime
    request_id: Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]
    ids: Annotated[
        list[Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]],
        pydantic.Field(max_length=MAX_SELECTED),
    ]


class FailedRunSource:
    """The failed runs of a pattern, the newest first; a position is a time, or a number of ids."""

    def __init__(self, app: Runs, args: FailedRunsArgs) -> None:
        self._app = app
        self._args = args

    def split(self, max_spans: int) -> list[Span]:
        return [Span()]

    def read(self, span: Span, size: int) -> Slice[Run]:
        args = self._args
        if args.ids:
            names, following = selected_ids(args.ids, span, size)
            return Slice(names, self.load("", names), "", following)
        before = datetime.datetime.fromisoformat(span.after) if span.after else args.started_before
        listed = self._app.runs(
            current_clients(), RunQuery(before, "failed", args.name, size, pattern=args.pattern)
        )
        following = listed.next_before.isoformat() if listed.next_before else None
        return Slice([run.id for run in listed.runs], listed.runs, "", following)

    def load(self, load_from: str, names: Sequence[str]) -> Sequence[Run | None]:
        return [self._run(name) for name in names]

    def _run(self, run_id: str) -> Run | None:
        try:
            return self._app.run(current_clients(), self._args.pattern, run_id).run
        except UnknownRunError:
            return None


def failed_runs_job(app: Runs) -> Job[FailedRunsArgs, Run]:
    """Return the job that retries the failed runs of an app."""

    @contextmanager
    def open_page(clients: Clients, args: FailedRunsArgs) -> Iterator[Callable[[Run], None]]:
        yield lambda run: _retry(app, clients, args, run.id)

    return Job(
        JOB,
        "default",
        FailedRunsArgs,
        lambda args: FailedRunSource(app, args),
        side_effect=open_page,
        page_size=PAGE_SIZE,
    )


def start_failed_runs(
    clients: Clients,
    job: Job[FailedRunsArgs, Run],
    pattern: str,
    *,
    name: str = "",
    ids: Sequence[str] = (),
    run_id: str,
) -> None:
    """Retry all failed runs of a pattern or of a name, or some by their ids.

    Args:
        run_id: Chosen so that the same intent has the same id.

    Raises:
        ValueError: there are too many ids.
    """
    if len(ids) > MAX_SELECTED:
        raise ValueError(f"at most {MAX_SELECTED} runs can be selected, got {len(ids)}")
    args = FailedRunsArgs(pattern, name, clients.clock.now(), run_id, list(ids))
    start(clients, job, args, run_id=run_id)


def _retry(app: Runs, clients: Clients, args: FailedRunsArgs, run_id: str) -> None:
    try:
        app.control_run(clients, args.pattern, run_id, "retry", request_id=args.request_id)
    except UnknownRunError:
        raise SkippedItemError("its rows were deleted") from None
    except RunRefusedError as error:
        if app.run(clients, args.pattern, run_id).run.state != "failed":
            raise SkippedItemError("it was dealt with before") from None
        raise RefusedItemError(str(error)) from None
