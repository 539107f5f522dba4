"""Incidents of a run, from the local platform: struck deliveries, kills, flushes, resizes.

The local platform knows which deliveries it struck, repeated or lost. A deployed app has no such
platform: there `incidents` returns an empty result.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import requests

from rollforward.flask.context import settings

Part = TypeVar("Part", bound=Hashable)

# A stage can do without; a visitor must not wait for it.
TIMEOUT_S = 1.5
# Datastore's times are rounded to microseconds, and so perhaps later than what they began.
ROUNDED_S = 0.001


@dataclass(frozen=True)
class Delivery:
    """A delivery that was struck, repeated or failed; times are seconds since 1970.

    Attributes:
        kind: "normal", "forced", or of a copy "duplicate" or "overlap".
        faults: The kinds of the rules that struck it.
        status: The HTTP status of its response, None if none came.
        reason: The app's explanation of the response.
        task_state: Its task's state now: "live", "done", "failed", "deleted".
    """

    task: str
    queue: str
    path: str
    kind: str
    faults: tuple[str, ...]
    at: float
    ended_at: float
    status: int | None
    error: str | None
    reason: str
    task_state: str
    task_ended_at: float | None
    body: Mapping[str, Any] | None

    @property
    def is_hit(self) -> bool:
        """True if a fault struck it or its worker died; a 409 or 503 of the app is no hit."""
        return bool(self.faults) or self.status is None

    @property
    def is_lost_with_its_worker(self) -> bool:
        return self.status is None and "lose_response" not in self.faults

    @property
    def is_repaired(self) -> bool:
        return self.task_state == "done"


@dataclass(frozen=True)
class Mark:
    """A person's interference: "kill" with the worker's process id, "flush", or "resize" with
    the new number of workers.
    """

    at: float
    kind: str
    text: str


@dataclass(frozen=True)
class SlowedQueue:
    """A queue that answers of 429 or 5xx have slowed, and when it is as fast as before."""

    queue: str
    speed_factor: float
    full_speed_at: float


@dataclass(frozen=True)
class FaultRule:
    """A rule of the platform: deliveries that match are struck; an empty field matches all."""

    id: str
    kind: str
    rate: float = 1.0
    queue: str = ""
    path: str = ""
    task: str = ""
    max_count: int | None = None
    param: float | None = None
    fired: int = 0

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> FaultRule:
        """Return a rule as the platform describes it; fields that are not known are left out."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in row.items() if name in names})

    @property
    def is_in_force(self) -> bool:
        """False if it has struck as often as it may."""
        return self.max_count is None or self.fired < self.max_count


@dataclass(frozen=True)
class Incidents:
    """Incidents of a stretch of time, with the rules and slowed queues of now."""

    deliveries: Sequence[Delivery] = ()
    marks: Sequence[Mark] = ()
    slowed: Sequence[SlowedQueue] = ()
    rules: Sequence[FaultRule] = ()


def incidents(
    since: datetime.datetime,
    until: datetime.datetime | None = None,
    *,
    path: str = "",
    text: str = "",
) -> Incidents:
    """Return what happened from `since` to `until`; nothing where no platform answers.

    Args:
        path: Only deliveries whose path holds this.
        text: Only deliveries of tasks whose bodies hold this, the id of a run for one.
    """
    answer = _ask("/api/v1/incidents", since, until, path=path, text=text)
    if answer is None:
        return Incidents()
    return Incidents(
        [Delivery(**{**row, "faults": tuple(row["faults"])}) for row in answer["deliveries"]],
        [Mark(**mark) for mark in answer["marks"]],
        [SlowedQueue(**queue) for queue in answer["slowed"]],
        [FaultRule.of(rule) for rule in answer["rules"]],
    )


@dataclass(frozen=True)
class Hits:
    """Number of hits on the deliveries of a part; `is_open`: a task of theirs is not done yet."""

    count: int
    is_open: bool


def hits_of(
    deliveries: Iterable[Delivery], part_of: Callable[[Delivery], Part | None]
) -> dict[Part, Hits]:
    """Return which parts of a picture were hit.

    Args:
        part_of: Returns the part that a delivery is of; None: of none.
    """
    hits: dict[Part, Hits] = {}
    for delivery in deliveries:
        part = part_of(delivery)
        if part is not None and delivery.is_hit:
            earlier = hits.get(part, Hits(0, is_open=False))
            is_open = earlier.is_open or not delivery.is_repaired
            hits[part] = Hits(earlier.count + 1, is_open)
    return hits


def mails_sent_again(
    subject: str, since: datetime.datetime, until: datetime.datetime | None
) -> int | None:
    """Return how many mails the local mail server got more than once; None: unknown."""
    answer = _ask("/api/v1/mail/repeats", since, until, text=subject)
    return None if answer is None else int(answer["repeats"])


def _ask(
    route: str, since: datetime.datetime, until: datetime.datetime | None, **chosen: str
) -> Any:
    base_url = settings().devserver_url
    if not settings().is_local or base_url is None:
        return None
    query: dict[str, Any] = {"since": seconds(since) - ROUNDED_S, **chosen}
    if until is not None:
        query["until"] = seconds(until) + ROUNDED_S
    try:
        response = requests.get(base_url + route, params=query, timeout=TIMEOUT_S)
        response.raise_for_status()
        return response.json()
    except (requests.RequestException, ValueError):
        return None


def seconds(at: datetime.datetime) -> float:
    """Return a moment, of UTC if it does not say, in seconds since 1970."""
    aware = at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
    return aware.timestamp()
