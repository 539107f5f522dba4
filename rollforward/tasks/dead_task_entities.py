"""Tasks that can never work, kept to be looked at and replayed.

DeadTask
    Key: hash of queue and task name: a repeated delivery is kept in the same row. With the body, of
    a later task of that name, while the first one's row is open.
    Queries: resolved = False, by key: the count. A range of one of the `listed` texts, by it: open
    dead tasks, the newest first, of any pattern, queue and class of error; a page continues after
    the text of its last row. `expires` <= a time, by expires: dealt with long ago. Single-property
    indexes.
    Growth: one row a task given up. `body` is at most 100 KB. A row that was dealt with goes after
    30 days. The texts begin with the time: 500 dead tasks a second and more would be slowed down.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

from google.cloud import ndb

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC).replace(tzinfo=None)
FACETS = ("pattern", "queue", "error")
# Of dead tasks that were replayed.
KEPT_FOR = datetime.timedelta(days=30)
_LATEST_MS = 10**14  # In the year 5138: times are listed as what is left until then.
# The second part of paths of tasks that patterns bring along.
_PATTERNS = (
    *("batches", "continuations", "counters", "flows", "fork-join", "lanes"),
    *("materialized-views", "operations", "outbox", "pull-queues", "schedules", "streams"),
)
_TRACEBACK = "Traceback (most recent call last):\n"
_ERROR = re.compile(r"(?:[a-z_]\w*\.)*([A-Z]\w*)(?=:|$)")


class DeadTask(ndb.Model):
    """A task that was given up."""

    path = ndb.TextProperty(required=True)
    queue = ndb.TextProperty(required=True)
    task_name = ndb.TextProperty(required=True)
    body = ndb.TextProperty(required=True)
    reason = ndb.TextProperty(required=True)
    error = ndb.TextProperty()  # The class of its last error.
    deliveries = ndb.IntegerProperty(indexed=False, default=0)
    count = ndb.IntegerProperty(indexed=False, default=0)
    counted_by = ndb.TextProperty()  # The last call that was counted: the idempotency guard.
    digest = ndb.TextProperty()  # Of the body as it was delivered; None: an earlier version.
    traceparent = ndb.TextProperty()  # From its last delivery; None: it had no trace.
    lane_task = ndb.TextProperty()  # Its id in a lane; None: it came from none.
    replays = ndb.IntegerProperty(indexed=False, default=0)
    created = ndb.DateTimeProperty(indexed=False, required=True)
    updated = ndb.DateTimeProperty(indexed=False, required=True)
    resolved = ndb.BooleanProperty(default=False)
    expires = ndb.DateTimeProperty()  # None: it is open.
    # Its place in the list of each choice of facets; None: it is not open.
    listed = ndb.StringProperty()
    listed_by_pattern = ndb.StringProperty()
    listed_by_queue = ndb.StringProperty()
    listed_by_error = ndb.StringProperty()
    listed_by_pattern_queue = ndb.StringProperty()
    listed_by_pattern_error = ndb.StringProperty()
    listed_by_queue_error = ndb.StringProperty()
    listed_by_pattern_queue_error = ndb.StringProperty()

    @property
    def pattern(self) -> str:
        """Return the pattern that the task belongs to, by its path."""
        name = str(self.path).removeprefix("/tasks/").partition("/")[0]
        return name if name in _PATTERNS else "tasks"

    @property
    def lane_id(self) -> str:
        """Return "<lane>|<key>" of the lane that the task waited in; "": in none."""
        return str(self.lane_task or "").rpartition("|")[0]

    def is_of_another(self, digest: str) -> bool:
        """Return whether it is open, and of another task than one whose body has this digest."""
        return not self.resolved and self.digest not in (None, digest)

    def list_open(self) -> None:
        """Put the row into each list of open dead tasks, at the time of its last failure."""
        facets = {name: str(getattr(self, name) or "") for name in FACETS}
        place = place_of(self.updated, self.key.id())
        self.resolved, self.expires = False, None
        for chosen in CHOICES:
            values = {name: facets[name] for name in chosen}
            setattr(self, list_name(chosen), list_prefix(values) + place)

    def resolve(self, now_utc: datetime.datetime) -> None:
        """Take the row from each list: it was dealt with."""
        self.resolved, self.expires = True, now_utc + KEPT_FOR
        for chosen in CHOICES:
            setattr(self, list_name(chosen), None)


CHOICES = [chosen for size in range(4) for chosen in itertools.combinations(FACETS, size)]


def list_name(chosen: tuple[str, ...]) -> str:
    """Return the property that lists by some facets.

    >>> list_name(("pattern", "error")), list_name(())
    ('listed_by_pattern_error', 'listed')
    """
    return f"listed_by_{'_'.join(chosen)}" if chosen else "listed"


def list_prefix(values: Mapping[str, str]) -> str:
    """Return the beginning of the places of one list, the same length for all."""
    if not values:
        return ""
    text = json.dumps([values[name] for name in FACETS if name in values])
    return hashlib.sha256(text.encode()).hexdigest()[:16] + "|"


def place_of(at: datetime.datetime, dead_id: str = "") -> str:
    """Return the place in a list: the later a time, the smaller.

    >>> new_year = datetime.datetime(2030, 1, 1)
    >>> place_of(new_year + datetime.timedelta(1), "b") < place_of(new_year, "a")
    True
    """
    at_ms = (at - EPOCH) // datetime.timedelta(milliseconds=1)
    return f"{_LATEST_MS - at_ms:015d}|{dead_id}"


def error_class(reason: str) -> str:
    """Return the class of error that a reason begins with, or its traceback ends with; "": none.

    >>> error_class("BadArgumentsError: no name"), error_class("no task is declared for this path")
    ('BadArgumentsError', '')
    >>> error_class(f"gave up. {_TRACEBACK}  File 'x'\\n    y()\\nshop.NoPartyError: Note: z\\n")
    'NoPartyError'
    """
    match = _ERROR.match(reason) or _ERROR.match(_raised(reason))
    return match[1] if match else ""


def short_reason(reason: str) -> str:
    """Return a reason with its last error in place of the tracebacks that lead to it.

    >>> short_reason(f"gave up. {_TRACEBACK}  File 'x'\\n    y()\\nshop.NoPartyError: Note: z\\n")
    'gave up. shop.NoPartyError: Note: z'
    >>> short_reason(f"gave up: NoPartyError: z\\n{_TRACEBACK}  File 'x'\\nshop.NoPartyError: z\\n")
    'gave up: NoPartyError: z'
    """
    error = _raised(reason)
    if not error:
        return reason
    head = reason.partition(_TRACEBACK)[0]
    # Lines of their own name the error already: `error_with_stack`.
    return head.rstrip() if head.endswith("\n") else head + error


def _raised(reason: str) -> str:
    """Return the error that the last traceback of a reason ends with; "": it has none."""
    _, _, stack = reason.rpartition(_TRACEBACK)
    lines = [line for line in stack.splitlines() if not line.startswith(" ")]
    return "\n".join(lines).strip() if len(stack) < len(reason) else ""


def open_dead_tasks() -> Any:
    """Return the query for the dead tasks that have not been dealt with."""
    return DeadTask.query(DeadTask.resolved == False).order(DeadTask._key)  # noqa: E712


def query_dead_tasks(
    values: Mapping[str, str], after: str = "", until: str = "~", *, oldest_first: bool = False
) -> Any:
    """Return the query for open dead tasks, the newest first unless the oldest are asked for.

    Args:
        values: Facets and their values; left out: any.
        after, until: Places within the list, as of `place_of`.
    """
    chosen = tuple(name for name in FACETS if name in values)
    place: Any = getattr(DeadTask, list_name(chosen))
    prefix = list_prefix(values)
    query = DeadTask.query(place > prefix + after, place < prefix + until)
    return query.order(-place if oldest_first else place)


def expired_dead_tasks(now_utc: datetime.datetime) -> Any:
    """Return the query for the rows that were dealt with long ago."""
    expires: Any = DeadTask.expires
    # The lower bound keeps out open ones: None sorts first.
    return DeadTask.query(expires > EPOCH, expires <= now_utc).order(expires)
