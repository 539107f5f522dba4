"""Dead letters of pipelines and pull queues, many at once: a run of a continuation.

Each letter is replayed or deleted by a commit of its own, which takes it from the list: once,
however often the run's task comes. A run takes the letters that were dead when it began. One that
dies again meanwhile is left to the next run.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import pydantic

from rollforward.continuations.jobs import Job, RefusedItemError, SkippedItemError
from rollforward.continuations.runs import start
from rollforward.continuations.sources import Slice, Span
from rollforward.operations.bulk import selected_ids
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import ANY_TIME, TimeRange
from rollforward.runtime.process.current import current_clients
from rollforward.tasks.runs import (
    Letter,
    LetterPage,
    LetterQuery,
    LetterRefusedError,
    LetterVerb,
    UnknownLetterError,
)

JOB = "dead-letters"
# Of a time. Code from before it had one knows no such job, so its workers leave the run to others:
# they would read the arguments, leave out the time, and take all.
TIMED_JOB = "dead-letters-of-a-time"
MAX_SELECTED = 100
MAX_TEXT_CHARS = 1_500  # A key's text.
PAGE_SIZE = 25


class Letters(Protocol):
    """The dead letters of an app: its registry."""

    def letters(
        self, clients: Clients, pattern: str, part: str, query: LetterQuery
    ) -> LetterPage: ...

    def letter(self, clients: Clients, pattern: str, part: str, letter_id: str) -> Letter: ...

    def change_letter(
        self, clients: Clients, pattern: str, part: str, letter_id: str, verb: LetterVerb
    ) -> None: ...


@dataclass(frozen=True)
class LettersArgs:
    """Arguments of a run: the part, and the ids that were selected; none: all of a time.

    Attributes:
        since, until: When they died, both included.
    """

    verb: LetterVerb
    pattern: Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]
    part: Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]
    until: datetime.datetime
    ids: Annotated[
        list[Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]],
        pydantic.Field(max_length=MAX_SELECTED),
    ]
    since: datetime.datetime | None = None


class LetterSource:
    """The dead letters of a part; a position is a cursor of their list, or a number of ids."""

    def __init__(self, app: Letters, args: LettersArgs) -> None:
        self._app = app
        self._args = args

    def split(self, max_spans: int) -> list[Span]:
        return [Span()]

    def read(self, span: Span, size: int) -> Slice[Letter]:
        args = self._args
        if args.ids:
            names, following = selected_ids(args.ids, span, size)
            return Slice(names, self.load("", names), "", following)
        query = LetterQuery(span.after, size, TimeRange(args.since))
        page = self._app.letters(current_clients(), args.pattern, args.part, query)
        letters = [letter for letter in page.letters if letter.died <= args.until]
        is_over = page.is_by_age and len(letters) < len(page.letters)
        following = None if is_over else page.next_cursor or None
        return Slice([letter.id for letter in letters], letters, "", following)

    def load(self, load_from: str, names: Sequence[str]) -> Sequence[Letter | None]:
        return [self._letter(name) for name in names]

    def _letter(self, letter_id: str) -> Letter | None:
        args = self._args
        try:
            return self._app.letter(current_clients(), args.pattern, args.part, letter_id)
        except UnknownLetterError:
            return None


def letters_jobs(app: Letters) -> tuple[Job[LettersArgs, Letter], ...]:
    """Return the jobs that replay or delete the dead letters of an app."""

    @contextmanager
    def open_page(clients: Clients, args: LettersArgs) -> Iterator[Callable[[Letter], None]]:
        yield lambda letter: _change(app, clients, args, letter.id)

    return tuple(
        Job(
            name,
            "default",
            LettersArgs,
            lambda args: LetterSource(app, args),
            side_effect=open_page,
            page_size=PAGE_SIZE,
        )
        for name in (JOB, TIMED_JOB)
    )


def start_letters(
    clients: Clients,
    jobs: Mapping[str, Job[Any, Any]],
    verb: LetterVerb,
    pattern: str,
    part: str,
    *,
    ids: Sequence[str] = (),
    died: TimeRange = ANY_TIME,
    run_id: str,
) -> None:
    """Replay or delete all dead letters of a part that died in a time, or some by their ids.

    Args:
        jobs: Those of the app, by name.
        run_id: Chosen so that the same intent has the same id.

    Raises:
        ValueError: there are too many ids.
    """
    if len(ids) > MAX_SELECTED:
        raise ValueError(f"at most {MAX_SELECTED} dead letters can be selected, got {len(ids)}")
    # The end is in the run's time.
    end = clients.clock.now()
    if died.until is not None:
        end = min(end, died.until - datetime.timedelta(microseconds=1))
    args = LettersArgs(verb, pattern, part, end, list(ids), died.since)
    job = jobs[TIMED_JOB if died else JOB]
    start(clients, job, args, run_id=run_id)


def _change(app: Letters, clients: Clients, args: LettersArgs, letter_id: str) -> None:
    """Change a letter that was dead when the run began.

    It is read again here: an attempt before this one may have changed it.
    """
    try:
        letter = app.letter(clients, args.pattern, args.part, letter_id)
        if letter.died > args.until:
            raise SkippedItemError("it died after the run began")
        app.change_letter(clients, args.pattern, args.part, letter_id, args.verb)
    except UnknownLetterError:
        raise SkippedItemError("it was dealt with before") from None
    except LetterRefusedError as error:
        raise RefusedItemError(str(error)) from None
