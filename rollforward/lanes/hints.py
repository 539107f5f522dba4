"""Hints: tasks of Cloud Tasks that have the tasks of a key run.

The tasks wait in rows; a hint only makes their turn come soon. The sweep finds keys whose hint was
lost. A mark in memcached says that a hint has been created and has not looked at the rows yet. So a
key with a backlog gets one hint, and not one for each task.

The protocol of the mark, for any order of its steps:

    who adds    commits the row, then adds the mark; creates a hint if it was not there
    who runs    deletes the mark, then looks at the rows; after its claim is given back once more

A row whose hint was saved was committed before a mark was found, and each mark is deleted before a
look. A key at its limit keeps the mark: the delivery that gives a claim back looks again.

A delivery that leaves tasks behind names its successor, in the commit that gives its claim
back. Hints that were named before end at once. So the hints of a key do not grow in number,
although each delivery deletes the mark.

Lost on failure: a hint whose process dies after it has added the mark. Its tasks, and tasks that
find the mark within its minute, wait for the sweep.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import pydantic

from rollforward.outbox import create_later
from rollforward.runtime.cache import MAX_TTL_S
from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import Message
from rollforward.tasks.declaration import Task
from rollforward.telemetry import current_task

MARK_S = 60
# Cloud Tasks takes tasks for 30 days; the sweep wakes what is further ahead.
LONGEST = datetime.timedelta(days=29)
# A hint that has come too early so often waits in its delivery before there is another one.
MOST_EARLY = 3
EARLY_PAUSE_S = 1.0


@dataclass(frozen=True)
class LaneArgs:
    """Arguments of a hint.

    Attributes:
        lane_id: "<lane>|<key>".
        is_check: Sent by the sweep: its delivery finds out whether dead workers hold claims.
        due_ms: The time for which it was created, in milliseconds since 1970; 0: for now.
        early: How many hints for that time were delivered before it.
        goes_on: The id under which the key's state names it; "": it was named by none.
    """

    lane_id: Annotated[str, pydantic.Field(min_length=3, max_length=1_000)]
    is_check: bool = False
    due_ms: int = 0
    early: int = 0
    goes_on: str = ""


def checks_claims(args: LaneArgs) -> bool:
    """Return whether the delivery of a hint finds out if dead deliveries hold claims."""
    current = current_task()
    return args.is_check or (current is not None and current.attempt > 0)


def hint_later(
    clients: Clients,
    task: Task[LaneArgs],
    lane_ids: Iterable[str],
    at: datetime.datetime | None = None,
    *,
    after_s: float = 0.0,
) -> None:
    """Create hints for keys whose new rows are committed, after the response.

    Args:
        at: When the rows are due; None: now.
        after_s: Seconds after which rows that are due now may run; they share a hint.
    """
    now_utc = clients.clock.now()
    due = _full_second(at) if at is not None and at > now_utc else _after(clients, after_s)
    messages = []
    for lane_id in dict.fromkeys(lane_ids):
        answer = _is_wanted(clients, lane_id, at, after_s)
        if answer is None:  # memcached is away: one for each second, by its name.
            second = _full_second(due or now_utc)
            name = ("lane-second", scope_of(clients), lane_id, round(second.timestamp()))
            messages.append(_message(clients, task, LaneArgs(lane_id), second, name))
        elif answer:
            messages.append(_message(clients, task, LaneArgs(lane_id), due))
    if messages:
        create_later(clients, messages)


def hint(clients: Clients, task: Task[LaneArgs], lane_id: str, goes_on: str = "") -> None:
    """Create a hint for now before this call returns; an error says that it may not exist."""
    clients.tasks.create(_message(clients, task, LaneArgs(lane_id, goes_on=goes_on), None))


def hint_soon(clients: Clients, task: Task[LaneArgs], lane_id: str, goes_on: str) -> None:
    """Create a hint for now, on another thread."""
    create_later(clients, [_message(clients, task, LaneArgs(lane_id, goes_on=goes_on), None)])


def hint_at(
    clients: Clients,
    task: Task[LaneArgs],
    lane_id: str,
    at: datetime.datetime,
    delivered: LaneArgs | None = None,
) -> None:
    """Create the one hint of a key for a time; a second call for that time creates none.

    Args:
        delivered: The hint that has come. If it was for that very time, it came too early, by this
            machine's clock, and there is one more.
    """
    if at - clients.clock.now() > LONGEST:
        return
    due_ms = round(at.timestamp() * 1000)
    is_early = delivered is not None and delivered.due_ms == due_ms
    early = delivered.early + 1 if delivered is not None and is_early else 0
    if early >= MOST_EARLY:  # The queue's clock is ahead of this one: it delivers at once.
        left_s = (at - clients.clock.now()).total_seconds()
        clients.clock.sleep(max(0.0, min(left_s, EARLY_PAUSE_S)))
    args = LaneArgs(lane_id, due_ms=due_ms, early=early)
    name = ("lane", scope_of(clients), lane_id, due_ms, early)
    clients.tasks.create(_message(clients, task, args, at, name))


def _message(
    clients: Clients,
    task: Task[LaneArgs],
    args: LaneArgs,
    at: datetime.datetime | None,
    name: tuple[str | int, ...] | None = None,
) -> Message:
    due = at if at is not None and at > clients.clock.now() else None
    return task.message(args, name=name, at=due)


def scope_of(clients: Clients) -> str:
    """Return the beginning of keys in memcached: databases and namespaces may share it."""
    client = clients.datastore
    return f"lanes:{client.project}:{client.database or ''}:{client.namespace or ''}"


def unmark(clients: Clients, lane_id: str) -> None:
    """Let the next row that is added have a hint."""
    clients.cache.delete(_mark(clients, lane_id))


def mark_until(clients: Clients, lane_id: str, at: datetime.datetime) -> None:
    """Let rows that are added have no hint: one exists for this time."""
    left_s = max(0, round((at - clients.clock.now()).total_seconds()))
    clients.cache.add(_mark(clients, lane_id), _due(at), min(MARK_S + left_s, MAX_TTL_S))


def _is_wanted(
    clients: Clients, lane_id: str, at: datetime.datetime | None, after_s: float
) -> bool | None:
    """Return whether a new row needs a hint; None: memcached does not know."""
    now_utc = clients.clock.now()
    if at is not None and at > now_utc:
        if at - now_utc > LONGEST:
            return False
        second = _full_second(at)
        mark = f"{_mark(clients, lane_id)}:{round(second.timestamp())}"
        if clients.cache.add(mark, b"1", MARK_S + round((at - now_utc).total_seconds())):
            return True
        return None if clients.cache.get(mark) is None else False
    due = _after(clients, after_s) or now_utc
    lasts_s = MARK_S + round(after_s)
    mark = _mark(clients, lane_id)
    if clients.cache.add(mark, _due(due), lasts_s):
        return True
    marked = clients.cache.get(mark)
    if marked is None:
        return None
    if after_s and marked.isdigit() and int(marked) > int(_due(due)):
        # The hint that exists comes too late: it waits for a run that has failed.
        clients.cache.set(mark, _due(due), lasts_s)
        return True
    return False


def _full_second(at: datetime.datetime) -> datetime.datetime:
    """Return a time, rounded up to a second: rows for that second share a hint."""
    return at if not at.microsecond else at.replace(microsecond=0) + datetime.timedelta(seconds=1)


def _after(clients: Clients, after_s: float) -> datetime.datetime | None:
    return clients.clock.now() + datetime.timedelta(seconds=after_s) if after_s else None


def _due(at: datetime.datetime) -> bytes:
    return str(round(at.timestamp() * 1000)).encode()


def _mark(clients: Clients, lane_id: str) -> str:
    return f"{scope_of(clients)}:hint:{lane_id}"
