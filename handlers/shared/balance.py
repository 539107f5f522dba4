"""The books of a run: the requested, accepted and observed effects, in the same words on each page.

    asked = made + refused + not attempted
    accepted = found + in flight

A page gives the numbers, each from rows of its own. The equations, the verdict and the words of the
summary are computed here, so no page claims more than its numbers show. While work is open, the two
sides are read at different moments: until then only certain evidence counts as lost or doubled.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from handlers.shared.formatting import number

ADDS_UP = "Adds up"


@dataclass(frozen=True)
class Term:
    """A number of an equation, its name, and the time of its reading as text."""

    name: str
    count: int
    at: str = ""


@dataclass(frozen=True)
class Equation:
    """A total and its parts, which may differ while work is open."""

    total: Term
    parts: Sequence[Term]
    is_open: bool

    @property
    def sign(self) -> str:
        if self.total.count == sum(part.count for part in self.parts):
            return "="
        return "⋯" if self.is_open else "≠"


@dataclass(frozen=True)
class Verdict:
    """A state of the stage ("running", "waiting", "done", "failed"), and its words."""

    state: str
    text: str


@dataclass(frozen=True)
class Balance:
    """Both sides of a run.

    Attributes:
        is_moving: Work of the run is open: its numbers change.
        asked: None: the run has no number of its own, as a pipeline that takes records.
        made_count: Accepted, of what was asked for.
        refused: Answered with an error for good.
        earlier: Accepted before this run, or by other ways; `found_count` includes these.
        found_count: None: nothing counts the effects a second time.
        in_flight: Accepted, and pending by rows of their own.
        unconfirmed: Begun, at most: whether they took effect is recorded when their tasks end.
        missing_count, doubled: Certain evidence, which holds while work is open.
        drift: Rows that a comparison with their sources found different; it is certain, too.
        parts: Balances that are judged one by one, so that errors of two cannot cancel out.
        asked_at, found_at: Times of the two readings.
    """

    is_moving: bool
    asked: int | None = None
    made_count: int = 0
    refused: int = 0
    earlier: int = 0
    found_count: int | None = None
    in_flight: int = 0
    unconfirmed: int = 0
    missing_count: int = 0
    doubled: int = 0
    drift: int = 0
    parts: Sequence[Balance] = field(default_factory=tuple)
    asked_at: datetime.datetime | None = None
    found_at: datetime.datetime | None = None

    def at(self, asked_at: datetime.datetime | None, found_at: datetime.datetime | None) -> Balance:
        """Return this balance with the times of its readings."""
        return replace(self, asked_at=asked_at, found_at=found_at)

    @property
    def accepted(self) -> int:
        return self.made_count + self.earlier

    @property
    def not_attempted(self) -> int:
        """Asked for, and neither made nor refused: to come, while the run moves."""
        return max(0, (self.asked or 0) - self.made_count - self.refused)

    @property
    def has_begun(self) -> bool:
        return bool(self.asked or self.accepted or self.found_count or self.refused)

    @property
    def begun(self) -> int:
        """Found, and not yet recorded as accepted by the tasks that made them."""
        if self.parts:
            return sum(part.begun for part in self.parts)
        return min(self.unconfirmed, max(0, self._surplus))

    @property
    def is_open(self) -> bool:
        """Whether the two sides may still change, so that they prove nothing."""
        is_pending = bool(self.in_flight or self.begun)
        return self.is_moving or is_pending or any(part.is_open for part in self.parts)

    @property
    def lost(self) -> int:
        """Accepted, and neither found nor in flight."""
        is_at_rest = not (self.is_moving or self.in_flight)
        deficit = max(0, -self._surplus) if is_at_rest else 0
        return max(
            self.missing_count, sum(part.lost for part in self.parts) if self.parts else deficit
        )

    @property
    def twice(self) -> int:
        """Found beyond the accepted ones, or made beyond those asked for."""
        if self.parts:
            return self.doubled + sum(part.twice for part in self.parts)
        excess = (
            max(0, self.made_count + self.refused - self.asked) if self.asked is not None else 0
        )
        is_at_rest = not (self.is_moving or self.in_flight)
        surplus = max(0, self._surplus - self.unconfirmed) if is_at_rest else 0
        return max(self.doubled, surplus) + excess

    @property
    def _surplus(self) -> int:
        return 0 if self.found_count is None else self.found_count + self.in_flight - self.accepted

    @property
    def is_exact(self) -> bool:
        """Whether something ran, all of it ended, and nothing is lost or doubled."""
        has_error = self.lost or self.twice or self.drift
        return self.has_begun and not (self.is_open or has_error)

    @property
    def verdict(self) -> Verdict | None:
        """None: nothing has run, so nothing is proved."""
        if not self.has_begun:
            return None
        errors = _errors(self.lost, self.twice)
        if self.drift:
            errors.append(f"drift {number(self.drift)}")
        if errors:
            return Verdict("failed", ", ".join(errors))
        if self.is_moving:
            return Verdict("running", "Open")
        if self.is_open:
            return Verdict("waiting", f"{number(self.in_flight + self.begun)} in flight")
        if not self._is_counted:
            text = f"{number(self.not_attempted)} not attempted"
            return Verdict("failed", text) if self.not_attempted else Verdict("done", "Complete")
        return Verdict("done", ADDS_UP)

    @property
    def _is_counted(self) -> bool:
        """Whether something counts the effects: without it nothing is known to be found once."""
        return self.found_count is not None

    @property
    def words(self) -> list[str]:
        """Return the end of a summary: open numbers, or the lost and doubled ones."""
        name = "to come" if self.is_moving else "not attempted"
        parts = [f"{number(self.not_attempted)} {name}"] if self.not_attempted else []
        if not self.is_open and self._is_counted:
            return [*parts, f"{number(self.lost)} lost", f"{number(self.twice)} duplicated"]
        if pending := self.in_flight + self.begun:
            parts.append(f"{number(pending)} in flight")
        return [*parts, *_errors(self.lost, self.twice)]

    @property
    def equations(self) -> list[Equation]:
        """Return the two equations, as far as the run has their numbers."""
        if not self.has_begun:
            return []
        rows = []
        if self.asked is not None:
            name = "to come" if self.is_moving else "not attempted"
            parts = [
                Term("made", self.made_count),
                Term("refused", self.refused),
                Term(name, self.not_attempted),
            ]
            asked = Term("asked", self.asked, _clock(self.asked_at))
            rows.append(Equation(asked, parts, self.is_open))
        if self.found_count is not None:
            name = "accepted and begun" if self.begun else "accepted"
            if self.asked is not None and self.earlier > 0:
                name += " in all"  # Also what was accepted before this run.
            accepted = Term(name, self.accepted + self.begun)
            effects = Term("found", self.found_count, _clock(self.found_at))
            parts = [effects, Term("in flight", self.in_flight)]
            rows.append(Equation(accepted, parts, self.is_open))
        return rows


def _errors(lost: int, twice: int) -> list[str]:
    named = ((lost, "lost"), (twice, "duplicated"))
    return [f"{number(count)} {name}" for count, name in named if count]


def _clock(at: datetime.datetime | None) -> str:
    """Return a time of day in UTC, without its zone.

    >>> _clock(datetime.datetime(2030, 5, 1, 19, 30, 7)), _clock(None)
    ('19:30:07', '')
    """
    return f"{at:%H:%M:%S}" if at is not None else ""


def total_of(
    parts: Sequence[Balance], *, is_moving: bool, asked: int | None = None, made_count: int = 0
) -> Balance:
    """Return the balance of several, which are judged one by one.

    Args:
        asked, made_count: The numbers of the run that they are parts of.
    """
    return Balance(
        is_moving=is_moving,
        asked=asked,
        made_count=made_count,
        earlier=sum(part.accepted for part in parts) - made_count,
        found_count=sum(part.found_count or 0 for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        unconfirmed=sum(part.unconfirmed for part in parts),
        parts=tuple(parts),
    )
