"""Progress of a rush: each tenant's line, and whether its rule was kept.

asked = done + waiting + dead

`done` is from the notes of the tasks, `waiting` from the rows of the lanes, `dead` from the dead
tasks: rows that know nothing of each other. A tenant's rule is judged by the notes
alone: when each task began and ended. In one queue Cloud Tasks has the tasks, and it counts
none by tenant: there `waiting` is the rest, neither done nor dead.

All times are of one machine here; clocks of several machines would differ.
"""

from __future__ import annotations

import datetime
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from google.cloud import ndb

from models.tenants import TenantRush, TenantTally, newest_rushes, tally_key
from pipelines.tenants.rushes import (
    FLOODER,
    IN_LANES,
    MAX_FLOOD,
    MAX_RUSHES,
    QUEUE,
    asked_of,
    lane_of,
    shards_of,
    tenants_of,
)
from rollforward.operations import DeadTaskFilter, list_dead_tasks
from rollforward.runtime import Clients, naive_utc

# A flood takes minutes at most. The page of an older rush need not poll every second.
MOVES_FOR = datetime.timedelta(minutes=15)
MAX_DEAD = 100


@dataclass(frozen=True)
class TenantLine:
    """A tenant of a rush, and its tasks.

    Attributes:
        spans: Begin and end of each task that is done, in seconds since the rush began, by number.
        came_s: When the last of its tasks came; None: some have not come.
        counted: Tasks that wait or run, by the rows of its lane; None: in one queue no row says.
    """

    tenant: str
    rule: str
    asked: int
    spans: dict[int, tuple[float, float]]
    repeats: int
    dead: int
    came_s: float | None
    counted: int | None

    @property
    def done(self) -> int:
        return len(self.spans)

    @property
    def waiting(self) -> int:
        return self.asked - self.done - self.dead if self.counted is None else self.counted

    @property
    def is_over(self) -> bool:
        return self.done + self.dead == self.asked

    @cached_property
    def begins(self) -> list[float]:
        """When its tasks began, the first one first."""
        return sorted(began for began, _ in self.spans.values())

    @property
    def waited_s(self) -> float | None:
        """Seconds from when its tasks had come until the first one began; None: none has."""
        if not self.begins or self.came_s is None:
            return None
        return max(0.0, self.begins[0] - self.came_s)

    @cached_property
    def out_of_order(self) -> int:
        """How many tasks began before one of a lower number had ended."""
        latest, count = 0.0, 0
        for _, (began, ended) in sorted(self.spans.items()):
            count += began < latest
            latest = max(latest, ended)
        return count

    @cached_property
    def at_a_time(self) -> int:
        """The most tasks that were at work at one time."""
        # An end comes before a begin of the same millisecond.
        changes = [(began, 1) for began, _ in self.spans.values()]
        changes += [(ended, -1) for _, ended in self.spans.values()]
        at_work = itertools.accumulate(change for _, change in sorted(changes))
        return max(at_work, default=0)

    @property
    def per_s(self) -> float | None:
        """How many began in a second, on average; None: fewer than two began."""
        if self.done < 2 or self.begins[-1] <= self.begins[0]:
            return None
        return (self.done - 1) / (self.begins[-1] - self.begins[0])


@dataclass(frozen=True)
class RushProgress:
    """A rush: its tenants, and the last rush that went the other way.

    Attributes:
        elapsed_s: Until its last task ended, or until now.
        other: The newest rush of the other way, with when its tenant B began, if there is one.
    """

    id: str
    row: TenantRush
    lines: Sequence[TenantLine]
    elapsed_s: float
    is_recent: bool
    other: OtherRush | None

    @property
    def is_in_lanes(self) -> bool:
        return bool(self.row.way == IN_LANES)

    @property
    def created(self) -> datetime.datetime:
        created: datetime.datetime = self.row.created
        return created

    @property
    def asked(self) -> int:
        return sum(line.asked for line in self.lines)

    @property
    def done(self) -> int:
        return sum(line.done for line in self.lines)

    @property
    def dead(self) -> int:
        return sum(line.dead for line in self.lines)

    @property
    def unsent(self) -> int:
        """Tasks that have not come yet."""
        further = 0 if self.row.behind_at else int(self.row.behind * self.row.tasks)
        return int(self.row.flood - self.row.sent) + further

    @property
    def waiting(self) -> int:
        """Tasks that wait or run; in one queue all that are neither done nor dead."""
        waiting = sum(line.waiting for line in self.lines)
        return waiting if self.is_in_lanes else waiting - self.unsent

    @property
    def repeats(self) -> int:
        return sum(line.repeats for line in self.lines)

    @property
    def is_over(self) -> bool:
        """Whether nothing moves any more: the row of a task that is done is deleted after it."""
        return all(line.is_over and not line.waiting for line in self.lines)

    @property
    def is_moving(self) -> bool:
        return not self.is_over and self.is_recent

    @property
    def adds_up(self) -> bool:
        """Whether all rows agree; while tasks move between two reads, they need not."""
        return self.asked == self.unsent + self.waiting + self.done + self.dead

    @property
    def missing(self) -> int:
        """Tasks in no row: lost, also while others move, which are never read as too few."""
        return max(0, self.asked - self.unsent - self.waiting - self.done - self.dead)

    @property
    def longest_s(self) -> float | None:
        """The longest time until the first task of a tenant that floods nothing."""
        waits = [line.waited_s for line in self.lines if line.tenant != FLOODER]
        return max((wait for wait in waits if wait is not None), default=None)


@dataclass(frozen=True)
class OtherRush:
    """A rush that went the other way."""

    id: str
    flood: int
    waited_s: float


def progress(clients: Clients, row: TenantRush) -> RushProgress:
    """Return the progress of a rush: its notes by key, a query for each lane, one for dead tasks.

    A task is counted in its lane before its note is read, so what moves meanwhile is counted twice
    rather than lost. The sum holds once nothing moves.
    """
    rush = row.key.id()
    counted = {
        tenant: lane_of(row, tenant).waiting(MAX_FLOOD) if row.way == IN_LANES else None
        for tenant in tenants_of(row)
    }
    dead = _dead_of(row) if row.dead else Counter()
    tallies = _tallies(rush, tenants_of(row))
    if not row.dead and _is_short(row, tallies, counted):
        dead = _dead_of(row)  # Faults may have struck a task too often.
    lines = [
        _line(row, tenant, tallies[tenant], dead[tenant], counted[tenant])
        for tenant in tenants_of(row)
    ]
    now_s = (naive_utc(clients.clock.now()) - row.created).total_seconds()
    ends = [ended for line in lines for _, ended in line.spans.values()]
    is_over = all(line.is_over for line in lines)
    return RushProgress(
        id=rush,
        row=row,
        lines=lines,
        elapsed_s=max(ends, default=0.0) if is_over else now_s,
        is_recent=now_s < MOVES_FOR.total_seconds(),
        other=_other(row),
    )


def reads_of(rush: RushProgress) -> int:
    """Return how many rows a page of a rush reads, besides keys of rows that wait."""
    tallies = sum(shards_of(line.tenant) for line in rush.lines)
    return 1 + MAX_RUSHES + 1 + tallies + rush.dead


def _tallies(rush: str, tenants: str) -> dict[str, list[TenantTally | None]]:
    keys = [
        tally_key(rush, tenant, shard) for tenant in tenants for shard in range(shards_of(tenant))
    ]
    rows = iter(ndb.get_multi(keys))
    return {tenant: list(itertools.islice(rows, shards_of(tenant))) for tenant in tenants}


def _is_short(
    row: TenantRush,
    tallies: dict[str, list[TenantTally | None]],
    counted: dict[str, int | None],
) -> bool:
    """Return whether some tasks that have come are neither done nor waiting."""
    done = sum(len(tally.done()) for many in tallies.values() for tally in many if tally)
    come = int(row.sent) + (int(row.behind * row.tasks) if row.behind_at else 0)
    return None not in counted.values() and done + sum(n or 0 for n in counted.values()) < come


def _dead_of(row: TenantRush) -> Counter[str]:
    """Return how many tasks of each tenant are dead, by the newest dead tasks of the queue."""
    page = list_dead_tasks(DeadTaskFilter(queue=QUEUE), limit=MAX_DEAD)
    bodies = [dead.body for dead in page.dead_tasks if row.key.id() in dead.body]
    return Counter({t: sum(f'"{t}"' in body for body in bodies) for t in tenants_of(row)})


def _line(
    row: TenantRush,
    tenant: str,
    tallies: Sequence[TenantTally | None],
    dead: int,
    counted: int | None,
) -> TenantLine:
    spans = {
        slot * len(tallies) + shard: (began / 1000, ended / 1000)
        for shard, tally in enumerate(tallies)
        if tally is not None
        for slot, (began, ended) in tally.done().items()
    }
    came_s = (row.behind_at - row.created).total_seconds() if row.behind_at else None
    return TenantLine(
        tenant=tenant,
        rule=row.rule if tenant == row.chosen else "none",
        asked=asked_of(row, tenant),
        spans=spans,
        repeats=sum(tally.repeats for tally in tallies if tally is not None),
        dead=dead,
        came_s=0.0 if tenant == FLOODER else came_s,
        counted=counted,
    )


def _other(row: TenantRush) -> OtherRush | None:
    """Return the newest rush of the other way in which tenant B has begun."""
    for other in newest_rushes().fetch(MAX_RUSHES):
        if other.way == row.way:
            continue
        line = _line(other, "B", _tallies(other.key.id(), "B")["B"], 0, None)
        if line.waited_s is not None:
            return OtherRush(other.key.id(), other.flood, line.waited_s)
        return None
    return None
