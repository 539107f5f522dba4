"""Rushes: tenant A floods a queue, then the others come with a few tasks each.

    in lanes        each tenant has a line of its own, and they take turns
    in one queue    the tasks wait in the queue, as Cloud Tasks has them: behind the flood

A rush is one commit: its row and a task. The task lets the flood wait, some hundred tasks a commit,
and then the others' tasks. Each task takes its time, and notes when it began and ended. One tenant
may have a rule of its own: it is in another lane of the same queue.

Lost on failure: nothing. A task that has ended and is run again finds its note, and counts that.
Cost of a task: its note; in lanes as of a lane, in one queue a task of Cloud Tasks.

Routes: POST /tasks/tenants/flood, /tasks/tenants/work.
Source: deficit round robin, M. Shreedhar and G. Varghese, 1995.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import pydantic
from google.cloud import ndb

from models.tenants import TenantRush, TenantTally, newest_rushes, rush_key, tally_key
from rollforward import outbox
from rollforward.datastore import transact
from rollforward.lanes import Lane, LaneKey, Rate
from rollforward.runtime import Clients, naive_utc
from rollforward.tasks import Reject, Task, task

QUEUE = "tenants"
FLOODER = "A"
TENANTS = "ABCDEF"
MAX_FLOOD, MAX_BEHIND, MAX_TASKS = 2_000, 5, 20
MAX_RUSHES = 12
# Rows of the tenant that floods, so that its tasks do not wait for each other's notes.
SHARDS = 16
PER_COMMIT = 250

IN_LANES, IN_ONE_LINE = "lanes", "line"
PACES_MS = {"fast": 5, "watch": 25, "slow": 100}  # What a task takes.
PER_S = 10

SHARED = Lane("tenants", queue=QUEUE)
IN_ORDER = Lane("tenants-in-order", queue=QUEUE, order=True)
TWO_AT_A_TIME = Lane("tenants-two-at-a-time", queue=QUEUE, limit=2)
PACED = Lane("tenants-paced", queue=QUEUE, rate=Rate(PER_S, burst=1))
RULES: Mapping[str, Lane] = {
    "none": SHARED,
    "order": IN_ORDER,
    "limit": TWO_AT_A_TIME,
    "rate": PACED,
}


@dataclass(frozen=True)
class RushForm:
    """A form filled in well: the flood, the others, and the rule of one of them."""

    way: str
    flood: int
    behind: int
    tasks: int
    chosen: str
    rule: str
    pace: str
    dead: int


@dataclass(frozen=True)
class WorkArgs:
    """A task of a tenant.

    Attributes:
        since_ms: When its rush began, in milliseconds since 1970.
        can_work: False: it can never work.
    """

    rush: Annotated[str, pydantic.Field(min_length=32, max_length=32)]
    tenant: Annotated[str, pydantic.Field(pattern="^[A-F]$")]
    number: Annotated[int, pydantic.Field(ge=0, lt=MAX_FLOOD)]
    since_ms: int
    takes_ms: Annotated[int, pydantic.Field(ge=0, le=1_000)]
    can_work: bool = True


def topic_of(rush: str) -> str:
    """Return the topic that the pages of a rush watch."""
    return f"tenants:{rush}"


def tenants_of(rush: TenantRush) -> str:
    """Return the letters of the tenants of a rush; the first one floods."""
    return TENANTS[: 1 + rush.behind]


def asked_of(rush: TenantRush, tenant: str) -> int:
    """Return how many tasks of a tenant a rush asks for."""
    return int(rush.flood if tenant == FLOODER else rush.tasks)


def lane_of(rush: TenantRush, tenant: str) -> LaneKey:
    """Return the key of a tenant, in the lane that has its rule."""
    lane = RULES[rush.rule] if tenant == rush.chosen else SHARED
    return lane(f"{rush.key.id()}.{tenant}")


def shards_of(tenant: str) -> int:
    """Return how many tallies a tenant has."""
    return SHARDS if tenant == FLOODER else 1


def begin(clients: Clients, rush: str, form: RushForm) -> bool:
    """Begin a rush, once for its id; return whether it is new."""

    def body() -> bool:
        if rush_key(rush).get() is not None:
            return False
        created = naive_utc(clients.clock.now())
        TenantRush(key=rush_key(rush), created=created, sent=0, **vars(form)).put()
        outbox.enqueue(clients, flood, flood.bind(rush, 0))
        return True

    is_new = transact(body)
    if is_new:
        _delete_old()
    return is_new


@task("/tasks/tenants/flood", queue="default")
def flood(clients: Clients, rush: str, first: int) -> None:
    """Let the next tasks of the flood wait, or after its last ones the tasks of the others."""
    row: TenantRush | None = rush_key(rush).get()
    if row is None or row.behind_at is not None or row.sent != first:
        return  # It was deleted, or an earlier delivery did.
    if row.way == IN_ONE_LINE:
        _stand_in_line(clients, row)
    transact(lambda: _send(clients, rush, first))
    clients.publish(topic_of(rush))


def _send(clients: Clients, rush: str, first: int) -> None:
    """Note the progress of the sending, in lanes together with the tasks: one commit."""
    row: TenantRush | None = rush_key(rush).get()
    if row is None or row.behind_at is not None or row.sent != first:
        return
    if row.way == IN_LANES:
        for args in _next(row):
            outbox.enqueue(clients, work, args, lane=lane_of(row, args.tenant))
    if first < row.flood:
        row.sent = min(row.flood, first + PER_COMMIT)
        outbox.enqueue(clients, flood, flood.bind(rush, row.sent))
    else:
        row.behind_at = naive_utc(clients.clock.now())
    row.put()


def _stand_in_line(clients: Clients, row: TenantRush) -> None:
    """Create tasks in the queue; by their names a repeated call creates no second ones."""
    args = _next(row)
    names = [(one.rush, one.tenant, one.number) for one in args]
    work.enqueue_many(clients, args, names=names)


def _next(row: TenantRush) -> Sequence[WorkArgs]:
    """Return the next tasks of a rush: a part of the flood, or after it the tasks of the others."""
    if row.sent < row.flood:
        numbers = range(row.sent, min(row.flood, row.sent + PER_COMMIT))
        return [_args(row, FLOODER, number) for number in numbers]
    letters = tenants_of(row)[1:]
    return [_args(row, tenant, number) for number in range(row.tasks) for tenant in letters]


def _args(row: TenantRush, tenant: str, number: int) -> WorkArgs:
    since_ms = round(row.created.replace(tzinfo=datetime.UTC).timestamp() * 1000)
    can_work = not (tenant == row.chosen and number < row.dead)
    return WorkArgs(row.key.id(), tenant, number, since_ms, PACES_MS[row.pace], can_work)


def _work(clients: Clients, args: WorkArgs) -> None:
    """Take some time, as a call of a service would; note when that was.

    Raises:
        Reject: it can never work.
    """
    if not args.can_work:
        raise Reject("the tenant's address does not exist")
    began_ms = _now_ms(clients) - args.since_ms
    clients.clock.sleep(args.takes_ms / 1000)
    ended_ms = _now_ms(clients) - args.since_ms
    shards = shards_of(args.tenant)
    key = tally_key(args.rush, args.tenant, args.number % shards)

    def body() -> None:
        tally = key.get() or TenantTally(key=key, times=b"", repeats=0)
        tally.note(args.number // shards, max(0, began_ms), max(0, ended_ms))
        tally.put()

    transact(body)
    clients.publish(topic_of(args.rush))


work = Task("/tasks/tenants/work", QUEUE, WorkArgs, _work, max_attempts=5)


def _now_ms(clients: Clients) -> int:
    return round(clients.clock.now().timestamp() * 1000)


def _delete_old() -> None:
    """Delete rushes beyond MAX_RUSHES, a few at a time: each new one makes room for one."""
    for rush in newest_rushes().fetch(3, offset=MAX_RUSHES):
        keys = [
            tally_key(rush.key.id(), tenant, shard)
            for tenant in tenants_of(rush)
            for shard in range(shards_of(tenant))
        ]
        ndb.delete_multi([*keys, rush.key])
