"""Quotas: limits on the work in flight of a demo, in total and per visitor.

Work is entered before it starts, with its units and its estimated duration. An entry expires after
that duration. Nothing has to release it, so a worker that dies leaves none behind. A visitor
without work in flight may always start something, if the demo has room.

The duration is an estimate: while a queue is paused, a demo accepts work as if the queue ran.
Single-flight work (a load of the counters, a list of students, a playback, a run of numbers) needs
no quota, nor does a single write.

Lost on failure: nothing. Cost of a start: 1 read and 1 write, in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.quotas import DemoUsage, usage_key
from pipelines import times
from rollforward.datastore import transact
from rollforward.runtime import Clients

# Minimum lifetime of an entry, so that a burst of short work counts.
MIN_S = 2.0
MAX_ENTRIES = 300


@dataclass(frozen=True)
class Quota:
    """Limits of one demo.

    Attributes:
        unit: Its unit of work, in the plural.
        total, per_visitor: Units in flight at a time.
        is_serial: Its queue runs one piece of work after the other, so the newest one ends last.
    """

    demo: str
    unit: str
    total: int
    per_visitor: int
    is_serial: bool = True


class OverQuotaError(Exception):
    """The demo is full; the text names the work in flight, `retry_after_s` when to try again."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class _Entry:
    """Work that may be in flight."""

    id: str
    visitor: str
    units: int
    over_ms: int


@dataclass(frozen=True)
class Work:
    """Work to start for a visitor: it is entered once for its id."""

    id: str
    visitor: str
    units: int
    takes_s: float


def reserve(clients: Clients, quota: Quota, work: Work) -> bool:
    """Enter work before it starts; return False if it was entered before.

    Raises:
        OverQuotaError: it exceeds the quota; nothing was entered.
    """

    def body() -> bool:
        now_ms = times.now_ms(clients)
        row = usage_key(quota.demo).get() or DemoUsage(key=usage_key(quota.demo))
        entries = [entry for fields in row.under_way if (entry := _Entry(*fields)).over_ms > now_ms]
        if any(entry.id == work.id for entry in entries):
            return False
        _check(quota, work, entries, now_ms)
        begins_ms = max((entry.over_ms for entry in entries), default=0) if quota.is_serial else 0
        over_ms = max(begins_ms, now_ms) + round(max(MIN_S, work.takes_s) * 1000)
        entered = [*entries, _Entry(work.id, work.visitor, work.units, over_ms)]
        row.under_way = [[entry.id, entry.visitor, entry.units, entry.over_ms] for entry in entered]
        row.put()
        return True

    return transact(body)


def cancel(quota: Quota, work_id: str) -> None:
    """Remove the entry of work that was refused or never started."""

    def body() -> None:
        row = usage_key(quota.demo).get()
        if row is None:
            return
        row.under_way = [entry for entry in row.under_way if entry[0] != work_id]
        if row.under_way:
            row.put()
        else:
            row.key.delete()

    transact(body)


def _check(quota: Quota, work: Work, entries: Sequence[_Entry], now_ms: int) -> None:
    visitor_entries = [entry for entry in entries if entry.visitor == work.visitor]
    if len(entries) >= MAX_ENTRIES or _is_over(entries, work, quota.total):
        _refuse(quota, entries, now_ms, "visitors have")
    if _is_over(visitor_entries, work, quota.per_visitor):
        _refuse(quota, visitor_entries, now_ms, "you have")


def _is_over(entries: Sequence[_Entry], work: Work, limit: int) -> bool:
    return bool(entries) and sum(entry.units for entry in entries) + work.units > limit


def _refuse(quota: Quota, entries: Sequence[_Entry], now_ms: int, whose: str) -> None:
    first_s = max(1, -(-(min(entry.over_ms for entry in entries) - now_ms) // 1000))
    units = sum(entry.units for entry in entries)
    raise OverQuotaError(
        f"{quota.demo.capitalize()}: {whose} {units:,} {quota.unit} under way, and this is too "
        f"much beside them. Nothing was started; try again in {first_s} s",
        first_s,
    )
