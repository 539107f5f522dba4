"""Time range, order and views of every list, as its address has them.

The templates have the fields in `lists.html`. A page gives its orders and its views, and asks for
the bounds of the time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

# Of a list's time: the text of the field, and its hours; "before-" is what is older.
AGES = {
    "5m": "in the last 5 minutes",
    "15m": "in the last 15 minutes",
    "1h": "in the last hour",
    "6h": "in the last 6 hours",
    "24h": "in the last 24 hours",
    "7d": "in the last 7 days",
    "before-1h": "more than an hour ago",
    "before-24h": "more than a day ago",
    "before-7d": "more than 7 days ago",
}
_UNITS_S = {"m": 60, "h": 3_600, "d": 86_400}
# As browsers send a field of a date and a time: without a zone.
_LOCAL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)


class BadChoiceError(ValueError):
    """A part of the address cannot be understood; the text begins with its name."""


@dataclass(frozen=True)
class ListChoice:
    """The time range and the order of a list, as its address has them.

    Attributes:
        age: One of AGES; "": any.
        since, until: The bounds of the time, aware.
        sort: One of the list's orders; "": its own.
    """

    age: str = ""
    since: datetime | None = None
    until: datetime | None = None
    sort: str = ""

    @classmethod
    def of(
        cls,
        query: Mapping[str, str],
        sorts: Collection[str] = (),
        ages: Collection[str] = tuple(AGES),
    ) -> ListChoice:
        """Return what an address asks for.

        Raises:
            BadChoiceError: there is no such time or order.
        """
        age, sort = query.get("age", ""), query.get("sort", "")
        for name, value, known in (("age", age, ages), ("sort", sort, sorts)):
            if value and value not in known:
                raise BadChoiceError(f"{name}: one of {', '.join(known)}.")
        since, until = (parse_time(query.get(name, ""), name) for name in ("since", "until"))
        return cls(age, since, until, sort)

    @property
    def fields(self) -> dict[str, str]:
        """The fields of an address that ask for the same."""
        fields = {"age": self.age, "sort": self.sort}
        fields |= {"since": field_of(self.since), "until": field_of(self.until)}
        return {name: value for name, value in fields.items() if value}

    def bounds(self, now_utc: datetime) -> tuple[datetime | None, datetime | None]:
        """Return the bounds of the time, as narrow as the address asks for; None: none."""
        lower, upper = [self.since], [self.until]
        if self.age.startswith("before-"):
            upper.append(now_utc - timedelta(seconds=seconds_of(self.age)))
        elif self.age:
            lower.append(now_utc - timedelta(seconds=seconds_of(self.age)))
        return (
            max((at for at in lower if at), default=None),
            min((at for at in upper if at), default=None),
        )

    def has(self, at: datetime | None, now_utc: datetime) -> bool:
        """Return whether a moment is in the time; None is in any only."""
        since, until = self.bounds(now_utc)
        if at is None:
            return since is None and until is None
        return (since is None or at >= since) and (until is None or at < until)


def seconds_of(age: str) -> int:
    """Return the length of one of AGES.

    >>> seconds_of("5m"), seconds_of("before-7d")
    (300, 604800)
    """
    length = age.removeprefix("before-")
    return int(length[:-1]) * _UNITS_S[length[-1]]


def parse_time(text: str, name: str) -> datetime | None:
    """Return a moment of an address, in UTC unless it has a zone; None: it has none.

    >>> parse_time("2030-05-01T12:00", "since")
    datetime.datetime(2030, 5, 1, 12, 0, tzinfo=datetime.timezone.utc)

    Raises:
        BadChoiceError: the text is none.
    """
    text = text.strip()
    if not text:
        return None
    refusal = BadChoiceError(f"{name}: a time like 2030-05-01T12:00, in UTC.")
    try:
        at = datetime.fromisoformat(text + ("+00:00" if _LOCAL.fullmatch(text) else ""))
        is_aware, at = at.tzinfo is not None, at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise refusal from None
    if not is_aware or not 1970 <= at.year < 5000:
        raise refusal
    return at


def field_of(at: datetime | None) -> str:
    """Return a moment as a field of a date and a time has it; "": none.

    >>> field_of(parse_time("2030-05-01T14:00+02:00", "since"))
    '2030-05-01T12:00'
    """
    if at is None:
        return ""
    at = at.astimezone(UTC).replace(tzinfo=None)
    return at.isoformat(timespec="auto" if at.second or at.microsecond else "minutes")


def parse_integer(text: str, limit: int) -> int | None:
    """Return the whole number from 1 to `limit` that a text of digits is; None: it is another text.

    >>> parse_integer("0012", 12), parse_integer("13", 12), parse_integer("1" * 5_000, 12)
    (12, None, None)
    """
    digits = text.lstrip("0")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(limit)):
        return None
    number = int(digits)
    return number if number <= limit else None
