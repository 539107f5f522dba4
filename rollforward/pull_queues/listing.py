"""Pull queues as an operator sees them: waiting and leased items, and dead letters."""

from __future__ import annotations

import datetime
import re
from typing import Any

from rollforward.pull_queues.entities import (
    dead_items,
    dead_items_after,
    item_key,
    items_of,
    ready_items,
    time_of,
)
from rollforward.pull_queues.items import ItemId
from rollforward.pull_queues.queue import PullQueue
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.runs import (
    BadCursorError,
    Letter,
    LetterPage,
    LetterQuery,
    LetterVerb,
    RunDetails,
    RunIssue,
    RunRefusedError,
    RunVerb,
    UnknownLetterError,
    named_run,
)

PATTERN = "pull-queues"
MAX_COUNTED = 1_000
MAX_SHOWN = 20
# Of dead letters that one command replays; give it again for more.
MAX_REPLAYED = 100
MAX_ID_BYTES = 1_000
_CURSOR = re.compile(r"([0-9T]{10,30})\|(.{1,1000})", re.DOTALL)


def queue_details(clients: Clients, queue: PullQueue) -> RunDetails:
    """Return the counts of a queue, by keys alone, and its oldest dead letters."""
    now_utc = naive_utc(clients.clock.now())
    ready = [
        len(ready_items(queue.name, partition, now_utc).fetch(MAX_COUNTED, keys_only=True))
        for partition in range(queue.partitions)
    ]
    living = len(items_of(queue.name).fetch(MAX_COUNTED, keys_only=True))
    letters = queue.dead_letters(limit=MAX_SHOWN)
    issues = [
        RunIssue(letter.id, "failed", f"leased {letter.deliveries} times: {letter.payload[:200]}")
        for letter in letters
    ]
    numbers = {
        "waiting": min(sum(ready), MAX_COUNTED),
        "leased_or_delayed": max(0, living - sum(ready)),
        "dead_letters": len(dead_items(queue.name).fetch(MAX_COUNTED, keys_only=True)),
        "counted_up_to": MAX_COUNTED,
        "max_deliveries": queue.max_deliveries,
        "partitions": queue.partitions,
    }
    verbs: tuple[RunVerb, ...] = ("retry",) if letters else ()
    return RunDetails(
        named_run(PATTERN, queue.name, verbs), issues=issues, numbers=numbers, has_letters=True
    )


def _parse_cursor(cursor: str) -> tuple[str, str] | None:
    """Return the time and the id after which a page begins; None: it is the first one.

    Raises:
        BadCursorError: the cursor is not from a page.
    """
    if not cursor:
        return None
    match = _CURSOR.fullmatch(cursor)
    if match is None or len(match[2].encode()) > MAX_ID_BYTES:
        raise BadCursorError("cursor must be next_cursor of a list")
    return match[1], match[2]


def letters_of(queue: PullQueue, query: LetterQuery) -> LetterPage:
    """Return a page of the dead letters of a queue, the oldest first.

    Raises:
        BadCursorError: the cursor is not from a page.
    """
    place, limit = _parse_cursor(query.cursor), query.limit
    since, until = (naive_utc(at) if at else None for at in (query.died.since, query.died.until))
    if place is not None:
        same, later = dead_items_after(queue.name, *place, until=until)
        rows = same.fetch(limit + 1)
        if len(rows) <= limit:
            rows += later.fetch(limit + 1)
    else:
        rows = dead_items(queue.name, since=since, until=until).fetch(limit + 1)
    shown = [_letter(row) for row in rows[:limit]]
    # A cursor of another time range may lie out of this one.
    letters = [letter for letter in shown if query.died.has(letter.died)]
    if len(rows) <= limit:
        return LetterPage(letters, is_by_age=True)
    cursor = f"{rows[limit - 1].dead.partition('|')[2]}|{shown[-1].id}"
    return LetterPage(letters, cursor, is_by_age=True)


def letter_of(queue: PullQueue, letter_id: str) -> Letter:
    """Return a dead letter of a queue.

    Raises:
        UnknownLetterError: there is none.
    """
    row = None
    if len(letter_id.encode()) <= MAX_ID_BYTES:
        row = item_key(queue.name, letter_id).get()
    if row is None or row.dead is None:
        raise UnknownLetterError(letter_id)
    return _letter(row)


def change_letter(clients: Clients, queue: PullQueue, letter_id: str, verb: LetterVerb) -> None:
    """Let a dead letter be leased again, or delete it.

    Raises:
        UnknownLetterError: there is none, or no more.
    """
    act = queue.replay if verb == "replay" else queue.discard
    is_id = len(letter_id.encode()) <= MAX_ID_BYTES
    if not (is_id and act(clients, ItemId(letter_id))):
        raise UnknownLetterError(letter_id)


def _letter(row: Any) -> Letter:
    died = time_of(row.dead).replace(tzinfo=datetime.UTC)
    added = row.added_at.replace(tzinfo=datetime.UTC)
    return Letter(
        id=row.key.id().partition("|")[2],
        name=row.tag or "no tag",
        error=f"never acked, after {row.deliveries} "
        + ("lease" if row.deliveries == 1 else "leases"),
        body=row.payload,
        died=died,
        numbers={"tag": row.tag or "none", "leases": row.deliveries, "added_at": added.timestamp()},
    )


def replay_dead_letters(clients: Clients, queue: PullQueue, verb: RunVerb) -> str:
    """Let up to 100 dead letters be leased again; return the queue's name.

    Raises:
        RunRefusedError: there are none, or the verb is another one.
    """
    letters = queue.dead_letters(limit=MAX_REPLAYED)
    if verb != "retry" or not letters:
        raise RunRefusedError("it has no dead letters to retry")
    for letter in letters:
        queue.replay(clients, letter.id)
    return queue.name
