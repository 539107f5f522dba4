"""The window of a key: the calls whose run has begun, and what the next one must know of it.

It stands in the state of the key, so the commit that claims the key decides which calls are in it.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rollforward.lanes.rows.entities import LaneState, LaneTask, task_key


@dataclass(frozen=True)
class Window:
    """The window of a key.

    Attributes:
        calls: The ends of the ids of its calls, in their order; empty: no run has begun.
        failures: How many of its runs have failed.
        reason: Why the last one did.
        not_before_ms: When it may run again, since 1970.
        unknown_since_ms: Since when no version of the code could read a call; 0: one could.
        began_ms: When the last run of the key began; 0: none is remembered.
        rest_until: Calls up to this one are the rest of a window, and run at once.
    """

    calls: tuple[str, ...] = ()
    failures: int = 0
    reason: str = ""
    not_before_ms: int = 0
    unknown_since_ms: int = 0
    began_ms: int = 0
    rest_until: str = ""

    @classmethod
    def of(cls, state: LaneState | None) -> Window:
        """Return the window of a key, without what only a newer version of the code knows of it."""
        stored: dict[str, Any] = (state.gathered if state is not None else None) or {}
        known = {name: stored[name] for name in cls.__dataclass_fields__ if name in stored}
        return cls(**{**known, "calls": tuple(stored.get("calls", ()))})

    def store(self, state: LaneState) -> None:
        """Set the window of a key, in its state."""
        state.gathered = {name: value for name, value in asdict(self).items() if value} or None

    @property
    def began(self) -> datetime.datetime | None:
        return time_at(self.began_ms) if self.began_ms else None

    def has_call_of(self, transaction_id: str) -> bool:
        """Return whether a transaction has added one of its calls."""
        return any(f"-{transaction_id[:12]}" in call for call in self.calls)

    def keys(self, lane_id: str) -> list[Any]:
        """Return the keys of its calls."""
        return [task_key(f"{lane_id}|{call}") for call in self.calls]

    def started(self, rows: Sequence[LaneTask], rest_until: str, now_ms: int) -> Window:
        """Return the window after a run with new calls has begun.

        Args:
            rest_until: The last call that waits with them; "": they are all.
        """
        calls = tuple(place_in_key(row.key.id()) for row in rows)
        is_rest = bool(self.rest_until) and calls[0] <= self.rest_until
        return Window(
            calls=calls,
            began_ms=self.began_ms if is_rest and self.began_ms else now_ms,
            rest_until=rest_until,
        )

    def closed(self) -> Window:
        """Return the window after its calls have ended."""
        return Window(began_ms=self.began_ms, rest_until=self.rest_until)

    def without(self, ids: Collection[str]) -> Window:
        """Return the window without calls of these ids; without any call it is closed."""
        calls = tuple(call for call in self.calls if call not in ids)
        return replace(self, calls=calls) if calls else self.closed()

    def failed(self, reason: str, not_before_ms: int = 0) -> Window:
        """Return the window after a run that failed."""
        return replace(
            self,
            failures=self.failures + 1,
            reason=reason,
            not_before_ms=not_before_ms,
            unknown_since_ms=0,
        )

    def put_off(self, reason: str, not_before_ms: int, unknown_since_ms: int) -> Window:
        """Return the window after a run that cannot work yet."""
        return replace(
            self,
            reason=reason,
            not_before_ms=not_before_ms,
            unknown_since_ms=unknown_since_ms,
        )


def place_in_key(task_id: str) -> str:
    """Return the end of the id of a call, which stands for it in its key.

    >>> place_in_key("digest|ada|1700000000000000-c0ffee")
    '1700000000000000-c0ffee'
    """
    return task_id.rpartition("|")[2]


def time_at(at_ms: int) -> datetime.datetime:
    """Return an aware time."""
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)


def milliseconds(at: datetime.datetime) -> int:
    """Return a time in milliseconds since 1970, rounded up: no wait ends early."""
    return -int(-at.timestamp() * 1000 // 1)
