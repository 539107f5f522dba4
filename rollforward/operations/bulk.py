"""Many dead tasks replayed or deleted: a run of a continuation, each dead task once.

A run takes the dead tasks that were listed when it began. One that fails again meanwhile, or is
new, is left to the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
from google.cloud import ndb

from rollforward.continuations.declaration import job
from rollforward.continuations.jobs import ItemError, RefusedItemError, SkippedItemError
from rollforward.continuations.runs import start
from rollforward.continuations.sources import Slice, Span
from rollforward.operations.dead_task_lists import DeadTaskFilter, read_page
from rollforward.operations.replays import (
    DeadTaskRefusedError,
    delete_in_transaction,
    replay_in_transaction,
)
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.dead_task_entities import DeadTask, place_of

BulkVerb = Literal["replay", "delete"]
BULK_VERBS: tuple[BulkVerb, ...] = ("replay", "delete")
MAX_SELECTED = 100
MAX_TEXT_CHARS = 1_500  # A key's text.
# Bodies of up to 100 KB, each once more in the outbox: a page is read at once.
PAGE_SIZE = 25


@dataclass(frozen=True)
class BulkArgs:
    """Arguments of a run: facets and a stretch of their list, or the ids that were selected."""

    facets: dict[str, Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]]
    start_after: Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]
    until: Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]
    ids: Annotated[
        list[Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]],
        pydantic.Field(max_length=MAX_SELECTED),
    ]


class DeadTaskSource:
    """The open dead tasks of a list, the newest first; a position is a place in the list."""

    def __init__(self, args: BulkArgs) -> None:
        self._args = args

    def split(self, max_spans: int) -> list[Span]:
        return [Span()]

    def read(self, span: Span, size: int) -> Slice[DeadTask]:
        args = self._args
        if args.ids:
            names, following = selected_ids(args.ids, span, size)
            return Slice(names, self.load("", names), "", following)
        page = read_page(args.facets, max(args.start_after, span.after), args.until, size)
        names = [dead.key.id() for dead in page.dead_tasks]
        return Slice(names, page.dead_tasks, "", page.next_cursor or None)

    def load(self, load_from: str, names: Sequence[str]) -> Sequence[DeadTask | None]:
        return ndb.get_multi([ndb.Key(DeadTask, name) for name in names])  # type: ignore[no-any-return]


def selected_ids(ids: Sequence[str], span: Span, size: int) -> tuple[Sequence[str], str | None]:
    """Return the ids of a slice of a selection, and the position of the next one; None: none."""
    position = int(span.after or 0)
    end = position + size
    return ids[position:end], str(end) if end < len(ids) else None


@job("replay-dead-tasks", queue="default", source=DeadTaskSource, page_size=PAGE_SIZE)
def replay_selected(
    clients: Clients, args: BulkArgs, dead_tasks: Sequence[DeadTask]
) -> list[ItemError | None]:
    """Replay dead tasks that are open, in the commit that holds their receipts."""

    def replay(dead: DeadTask) -> None:
        replay_in_transaction(clients, dead, clients.task_paths)

    return _each_result(dead_tasks, replay)


@job("delete-dead-tasks", queue="default", source=DeadTaskSource, page_size=PAGE_SIZE)
def delete_selected(
    clients: Clients, args: BulkArgs, dead_tasks: Sequence[DeadTask]
) -> list[ItemError | None]:
    """Delete dead tasks that are open, in the commit that holds their receipts."""
    return _each_result(dead_tasks, lambda dead: delete_in_transaction(clients, dead))


JOBS: dict[BulkVerb, Any] = {"replay": replay_selected, "delete": delete_selected}


def start_bulk(
    clients: Clients,
    verb: BulkVerb,
    chosen: DeadTaskFilter | None = None,
    *,
    ids: Sequence[str] = (),
    run_id: str,
) -> str:
    """Replay or delete all dead tasks that match, or some by their ids; return the run's id.

    Args:
        run_id: Chosen so that the same intent has the same id.

    Raises:
        ValueError: there are too many ids, or the run's id is none.
    """
    if len(ids) > MAX_SELECTED:
        raise ValueError(f"at most {MAX_SELECTED} dead tasks can be selected, got {len(ids)}")
    chosen = chosen or DeadTaskFilter()
    start_after, until = chosen.places
    newest = place_of(naive_utc(clients.clock.now()))
    args = BulkArgs(dict(chosen.facets), max(start_after, newest), until, list(ids))
    start(clients, JOBS[verb], args, run_id=run_id)
    return run_id


def _each_result(
    dead_tasks: Sequence[DeadTask], act: Callable[[DeadTask], None]
) -> list[ItemError | None]:
    stored = ndb.get_multi([dead.key for dead in dead_tasks])
    return [_act(dead, act) for dead in stored]


def _act(dead: DeadTask | None, act: Callable[[DeadTask], None]) -> ItemError | None:
    if dead is None or dead.resolved:
        return SkippedItemError("it was dealt with before")
    try:
        act(dead)
    except DeadTaskRefusedError as error:
        return RefusedItemError(str(error))
    return None
