"""Lanes: tasks that wait for their turn, and the keys that have some.

LaneTask
    Key: "<lane>|<key>|<place>-<id>": the key of the lane is quoted, and the place is a time in
    microseconds. So the tasks of a key follow each other in the order of their turns.
    Queries: ranges of keys: the next tasks of a key; the first key that has some behind another
    one. A range of `place`, which is the row's own id, the last one first: the last task of a key.
    Single-property indexes.
    Growth: a row for each task that waits or runs. More than 500 a second in one key slow each
    other down.

LaneState
    Key: "<lane>|<key>". The claims of the deliveries that run tasks of the key, its rate, and
    whether it is paused. A change is a compare-and-set or a transaction; a claim names the stamp
    of the state that it was decided by.
    Queries: expires <= a time, by expires: keys that have had nothing to do for a day. expires is
    None, by key: keys that are paused or blocked, or whose window has begun.
    Growth: a row for each key that has tasks, or is paused; with a rate it stays for a day.
"""

from __future__ import annotations

import datetime
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import client_namespace, key_of_client

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC).replace(tzinfo=None)
# Behind all places: digits and "-" sort before it.
_END = "~"


@dataclass(frozen=True)
class Claim:
    """A delivery's right to run some tasks of a key.

    Attributes:
        owner: The delivery, signed by its process.
        tasks: Ids of the tasks, in the order in which it runs them.
        beats: One more whenever the delivery has shown that it lives.
        began: When it was made, in seconds since 1970.
        charged_ms: The arrival time of the key's rate after it, in milliseconds since 1970.
        is_careful: Whether each task is deleted before the next one begins.
    """

    owner: str
    tasks: tuple[str, ...]
    beats: int = 0
    began: float = 0.0
    charged_ms: int = 0
    is_careful: bool = False

    @property
    def last_beat(self) -> tuple[str, int]:
        """A value that changes while the delivery lives."""
        return self.owner, self.beats


class LaneTask(ndb.Model):
    """A task that waits for its turn, or runs."""

    place = ndb.StringProperty(required=True)
    path = ndb.TextProperty(required=True)
    body = ndb.TextProperty(required=True)
    added = ndb.DateTimeProperty(indexed=False, required=True)
    traceparent = ndb.TextProperty()
    failures = ndb.IntegerProperty(indexed=False, default=0)
    waits = ndb.IntegerProperty(indexed=False, default=0)  # Planned ones, without a failure.
    # Claims that were taken away, or given back with an error, when it was their next task.
    takeovers = ndb.IntegerProperty(indexed=False, default=0)
    unknown_since = ndb.DateTimeProperty(indexed=False)  # Since no version has known its path.
    not_before = ndb.DateTimeProperty(indexed=False)  # Of one that keeps its place.
    reason = ndb.TextProperty()  # Why it did not end when it ran last.


class LaneState(ndb.Model):
    """The state of a key."""

    stamp = ndb.TextProperty(required=True)  # The last change: no two have the same.
    claimed = ndb.JsonProperty(default=[])
    # The task that has begun and not ended, in a lane with an order: none passes it.
    head = ndb.TextProperty()
    arrival_ms = ndb.IntegerProperty(indexed=False, default=0)  # The rate's next one, since 1970.
    next_hint = ndb.TextProperty()  # The hint that goes on: those named before end at once.
    pace_ms = ndb.IntegerProperty(indexed=False, default=0)  # What a task takes, about.
    # A worker died, and it is unknown over which task: the next claim is careful.
    is_careful = ndb.BooleanProperty(indexed=False, default=False)
    is_paused = ndb.BooleanProperty(indexed=False, default=False)
    blocked_by = ndb.TextProperty()  # The dead task that must be dealt with before.
    # Tasks that the change of this stamp has deleted.
    drained = ndb.IntegerProperty(indexed=False, default=0)
    gathered = ndb.JsonProperty()  # The window of a key whose tasks run together.
    expires = ndb.DateTimeProperty()  # None: it is paused, or a window has begun.

    @property
    def claims(self) -> list[Claim]:
        return [_claim_of(body) for body in self.claimed]

    def set_claims(self, claims: Sequence[Claim]) -> None:
        self.claimed = [asdict(claim) for claim in claims]

    def claim_of(self, owner: str) -> Claim | None:
        return next((claim for claim in self.claims if claim.owner == owner), None)

    @property
    def ids_at_work(self) -> frozenset[str]:
        """The ids of the tasks that deliveries have claimed."""
        claims: list[Claim] = self.claims
        window = (self.gathered or {}).get("calls", ()) if claims else ()
        ids = {task_id for claim in claims for task_id in claim.tasks}
        return frozenset(ids | {f"{self.key.id()}|{call}" for call in window})

    @property
    def rests(self) -> bool:
        """Whether no task of the key may begin until a person says so."""
        return bool(self.is_paused or self.blocked_by)


def _claim_of(body: Mapping[str, Any]) -> Claim:
    """Return a stored claim, without what only a newer version of the code knows of it."""
    known = {name: value for name, value in body.items() if name in Claim.__dataclass_fields__}
    return Claim(**{**known, "tasks": tuple(body["tasks"])})


def quoted(key: str) -> str:
    """Return a key for ids: without the characters that part and end them.

    >>> quoted("auth0|7 é~")
    'auth0%7C7%20%C3%A9%7E'
    """
    return urllib.parse.quote(key, safe="@:/+=,").replace("~", "%7E")


def unquote(quoted_key: str) -> str:
    return urllib.parse.unquote(quoted_key)


def state_key(lane_id: str) -> Any:
    """Return the key of a state, by "<lane>|<key>"."""
    return key_of_client(LaneState, lane_id)


def task_key(task_id: str) -> Any:
    return key_of_client(LaneTask, task_id)


def lane_id_of(task_id: str) -> str:
    """Return "<lane>|<key>" of a task.

    >>> lane_id_of("mail|ada|1700000000000000-c0ffee")
    'mail|ada'
    """
    return task_id.rpartition("|")[0]


def place_of(at: datetime.datetime) -> int:
    """Return the place of a time, aware: microseconds since 1970."""
    return (at - EPOCH.replace(tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


def time_of(task_id: str) -> datetime.datetime:
    """Return the aware time of the place of a task."""
    return EPOCH.replace(tzinfo=datetime.UTC) + datetime.timedelta(microseconds=place_in(task_id))


def place_in(task_id: str) -> int:
    """Return the place in the id of a task.

    >>> place_in("mail|ada|1700000000000000-c0ffee")
    1700000000000000
    """
    return int(task_id.rpartition("|")[2].partition("-")[0])


def id_at(lane_id: str, place: int, unique: str) -> str:
    """Return the id of a task at a place.

    >>> id_at("mail|ada", 17, "c0ffee")
    'mail|ada|0000000000000017-c0ffee'
    """
    return f"{lane_id}|{place:016d}-{unique}"


def waiting(lane_id: str, until: int | None = None) -> Any:
    """Return the query for the tasks of a key, the first one first.

    Args:
        until: Only those whose place is no later.
    """
    end = f"{lane_id}|{_END}" if until is None else f"{lane_id}|{until:016d}{_END}"
    lower, upper = task_key(f"{lane_id}|"), task_key(end)
    return _between(lower, upper)


def last_of(lane_id: str) -> Any:
    """Return the query for the last task of a key."""
    place: Any = LaneTask.place
    low, end, namespace = f"{lane_id}|", f"{lane_id}|{_END}", client_namespace()
    return LaneTask.query(place >= low, place < end, namespace=namespace).order(-place)


def first_after(lane: str, lane_id: str = "") -> Any:
    """Return the query for the first task of a lane behind all tasks of one of its keys.

    Args:
        lane_id: "<lane>|<key>" of that key; "": the first task of all.
    """
    lower = task_key(f"{lane_id}|{_END}" if lane_id else f"{lane}|")
    upper = task_key(f"{lane}|{_END}")
    return _between(lower, upper)


def resting_states(lane: str, lane_id: str = "") -> Any:
    """Return the query for the keys of a lane that are paused or blocked.

    Args:
        lane_id: "<lane>|<key>" behind which they are; "": all.
    """
    lower, upper = state_key(lane_id or f"{lane}|"), state_key(f"{lane}|{_END}")
    query = LaneState.query(LaneState.expires == None, namespace=client_namespace())  # noqa: E711
    return query.filter(LaneState._key > lower, LaneState._key < upper).order(LaneState._key)


def expired_states(now_utc: datetime.datetime) -> Any:
    """Return the query for the keys that have had nothing to do for long."""
    expires: Any = LaneState.expires
    # The lower bound keeps out paused ones: None sorts first.
    return LaneState.query(expires > EPOCH, expires <= now_utc).order(expires)


def _between(lower: Any, upper: Any) -> Any:
    key = LaneTask._key
    return LaneTask.query(key > lower, key < upper, namespace=client_namespace()).order(key)
