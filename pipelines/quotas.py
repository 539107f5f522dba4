"""Quotas: how much work visitors may have under way in a demo, all together and each of them.

A start is entered before it begins, with its units and about how long they take. An entry counts
until then: nothing has to give it back, so none is left behind by a worker that dies. A visitor
with nothing under way may always start something, if the demo has room.

The time is an estimate. While a queue is paused, a demo takes on what the queue would have done.
What goes on one at a time anyway (a load of the counters, a list of students, a playback, a run of
numbers) needs no quota, nor does what is one write.

Lost on failure: nothing. Cost of a start: 1 read and 1 write, in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.quotas import DemoUsage, usage_key
from rollforward.datastore import transact
from rollforward.runtime import Clients

# Shorter work is still seen for so long: so a row has few entries, and a burst counts.
MIN_S = 2.0
MAX_ENTRIES = 300


@dataclass(frozen=True)
class Quota:
    """What a demo takes on.

    Attributes:
        unit: What its work is counted in, in the plural.
        total, per_visitor: Units under way at a time.
        is_serial: Its work is done one after the other, so what came last is over last.
    """

    demo: str
    unit: str
    total: int
    per_visitor: int
    is_serial: bool = True


class OverQuotaError(Exception):
    """There is no room now; the text says what is under way, `retry_after_s` when to try again."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class _Entry:
    """Work that may be under way."""

    id: str
    visitor: str
    units: int
    over_ms: int


@dataclass(frozen=True)
class Work:
    """What a visitor wants to start: it is entered once for its id."""

    id: str
    visitor: str
    units: int
    takes_s: float


def reserve(clients: Clients, quota: Quota, work: Work) -> bool:
    """Enter work that is about to be started; return False if it was entered before.

    Raises:
        OverQuotaError: it would be too much; nothing was entered.
    """

    def body() -> bool:
        now_ms = round(clients.clock.now().timestamp() * 1000)
        row = usage_key(quota.demo).get() or DemoUsage(key=usage_key(quota.demo))
        entries = [entry for each in row.under_way if (entry := _Entry(*each)).over_ms > now_ms]
        if any(entry.id == work.id for entry in entries):
            return False
        _check(quota, work, entries, now_ms)
        begins_ms = max((each.over_ms for each in entries), default=0) if quota.is_serial else 0
        over_ms = max(begins_ms, now_ms) + round(max(MIN_S, work.takes_s) * 1000)
        entered = [*entries, _Entry(work.id, work.visitor, work.units, over_ms)]
        row.under_way = [[each.id, each.visitor, each.units, each.over_ms] for each in entered]
        row.put()
        return True

    return transact(body)


def cancel(quota: Quota, work_id: str) -> None:
    """Take out work that was refused, or not started."""

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
    own = [entry for entry in entries if entry.visitor == work.visitor]
    if len(entries) >= MAX_ENTRIES or _is_over(entries, work, quota.total):
        _refuse(quota, entries, now_ms, "visitors have")
    if _is_over(own, work, quota.per_visitor):
        _refuse(quota, own, now_ms, "you have")


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
