"""The part of a stage that a demo adds: its run, its tasks and its words."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from handlers.shared.balance import Balance
from handlers.shared.faults import shown_faults
from handlers.shared.incidents import Delivery, incidents, seconds
from handlers.shared.stage import Cell, Stage, Timeline, moment_of, stage_of


class DemoStage(Protocol):
    """The last run of a demo, as its stage shows it."""

    @property
    def path(self) -> str:
        """A part that the routes of all its tasks have: the platform is asked for these."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Beginnings of the routes of its tasks; other deliveries are other demos'."""
        return (self.path,)

    @property
    def text(self) -> str:
        """The id of the run, if the bodies of its tasks hold it; else its deliveries are those
        between its beginning and its end.
        """
        return ""

    @property
    def began(self) -> datetime.datetime | None:
        """Beginning of the run; None before the first one."""

    def timeline(self, started: float, age_s: float, deliveries: Sequence[Delivery]) -> Timeline:
        """Return the time of a run that has begun.

        Args:
            started: Its beginning, in seconds since 1970.
            age_s: The time since then.
            deliveries: Its tasks' and later runs' deliveries.
        """

    def name(self, delivery: Delivery) -> str:
        """Return a delivery's name for visitors."""

    def closing(self, stage: Stage) -> str:
        """Return the line that sums up a run that has begun."""

    def balance(self) -> Balance | None:
        """Return the books of the run; None: it claims nothing."""
        return None

    def cost(self) -> Sequence[Cell]:
        """Return the numbers of the cost."""
        return ()


def name_by_path(delivery: Delivery, words: Mapping[str, str]) -> str:
    """Return a delivery's name by the beginning of its route."""
    return next((word for path, word in words.items() if delivery.path.startswith(path)), "a task")


def render(demo: DemoStage, now: datetime.datetime) -> Stage:
    """Return the stage of a demo: of its last run, or before the first one of its switches."""
    since = demo.began or now
    seen = incidents(since, path=demo.path, text=demo.text)
    deliveries = [d for d in seen.deliveries if d.path.startswith(demo.paths)]
    time = None
    if demo.began is not None:
        started = seconds(demo.began)
        time = demo.timeline(started, max(0.0, seconds(now) - started), deliveries)
        if not demo.text:
            deliveries = [d for d in deliveries if time.has(d.at)]
    balance = demo.balance()
    return stage_of(
        time,
        replace(seen, deliveries=deliveries),
        shown_faults(seen.rules, demo.paths),
        now=seconds(now),
        name=demo.name,
        closing=demo.closing,
        cost=demo.cost(),
        balance=None if balance is None else balance.at(demo.began, _read_at(time, now)),
    )


def _read_at(time: Timeline | None, now: datetime.datetime) -> datetime.datetime:
    """Return the time that the numbers are of: a run that is over changes no more."""
    if time is None or not time.is_over:
        return now
    return moment_of(1000 * (time.started + time.elapsed_s))
