"""Splits and merges with a part of the protocol left out: what the schedules have to notice."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from rollforward.streams.exchange import wakeups
from rollforward.streams.scaling import resharding
from rollforward.streams.storage.layout import Inbox, inboxes_of, retired_of
from rollforward.streams.storage.schema import Head, Interval
from rollforward.streams.watermarks import cut_reader, inbox_scan
from rollforward.streams.workers import lease
from tests.rollforward.streams.planted import protocol
from tests.rollforward.streams.scenarios.growing import Reshaped
from tests.rollforward.streams.simulator.schedules import Schedule


def calm(schedule: Reshaped, patch: pytest.MonkeyPatch) -> None:
    """Nothing is left out: without faults, and late records, no wake needs the sweep."""
    protocol.calm_without_sweep(schedule, patch)
    for client in schedule.clients:
        client.luck = [0.5] * len(client.luck)


def heirs_sleep(schedule: Reshaped, patch: pytest.MonkeyPatch) -> None:
    """Who sends to an interval that was merged meanwhile wakes nobody."""

    def nobody(environment: Any, gone: Any) -> Generator[Any, Any, None]:
        yield from ()

    calm(schedule, patch)
    patch.setattr(wakeups, "_wake_successors", nobody)


def generation_begins_again(schedule: Reshaped, patch: pytest.MonkeyPatch) -> None:
    """What is cut off begins with the first generation, which may have been used there before."""
    calm(schedule, patch)
    real = resharding._split_interval

    def halves(was: Interval, lo: int, slot: int, layout: int) -> tuple[Interval, Interval]:
        lower, upper = real(was, lo, slot, layout)
        return lower, upper._replace(gen=0)

    patch.setattr(resharding, "_split_interval", halves)


def ids_stay_behind(schedule: Reshaped, patch: pytest.MonkeyPatch) -> None:
    """What is cut off does not know which records were accepted."""
    real = resharding._split_interval

    def halves(was: Interval, lo: int, slot: int, layout: int) -> tuple[Interval, Interval]:
        lower, upper = real(was, lo, slot, layout)
        return lower, upper._replace(ids=())

    patch.setattr(resharding, "_split_interval", halves)


def left_is_forgotten(schedule: Reshaped, patch: pytest.MonkeyPatch) -> None:
    """A left inbox is forgotten as soon as it is empty, whoever may write to it still."""

    def forgotten(environment: Any, head: Any, rows: Any, filled: Any) -> dict[str, Any]:
        kept = {
            name: [e for e in retired_of(head, name) if (name, Inbox(e.created_in, e.lo)) in filled]
            for name in head.retired
        }
        return {name: left for name, left in kept.items() if left}

    patch.setattr(cut_reader, "remaining_retired", forgotten)


def late_overtakes(schedule: Reshaped, patch: pytest.MonkeyPatch) -> None:
    """Late records do not wait for those in time that may be on their way from a left inbox."""
    patch.setattr(lease, "ready", lambda chunks, watermark: chunks)
    schedule.stages = ("rekey",)  # Where records have ids.
    for client in schedule.clients:
        client.luck = [0.1] * len(client.luck)  # Many come late, at their first or second time.


def newest_inbox_first(schedule: Reshaped, patch: pytest.MonkeyPatch) -> None:
    """A tick without snapshots reads the inboxes that were born last first."""
    schedule.simulation.has_snapshots = False
    patch.setattr(inbox_scan, "inboxes_of", lambda head, name: inboxes_of(head, name)[::-1])


def inboxes_together(schedule: Reshaped, patch: pytest.MonkeyPatch) -> None:
    """A tick without snapshots looks into inboxes that were left and into others side by side."""
    schedule.simulation.has_snapshots, schedule.simulation.tears = False, True
    patch.setattr(inbox_scan, "groupby", lambda places, birth: [(0, places)])


def percentile_stays(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """Timers follow the watermark of a percentile that nobody asks for any more."""

    def reached(head: Head, computation: str) -> int:
        return head.percentile_watermarks.get(computation, head.inputs.get(computation, 0))

    patch.setattr(Head, "timer_watermark", reached)
