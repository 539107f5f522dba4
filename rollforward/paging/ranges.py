"""Ranges: rows in one order, readable beyond any place, in either direction."""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.cloud import ndb

from rollforward.paging.order_keys import EPOCH, MICROSECOND, microseconds, number_key, number_of

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Letters without a usable successor: a surrogate, two units of UTF-16, or none.
_WITHOUT_NEXT = ("\ud7ff", "\uffff", "\U0010ffff")


class UnplacedRowError(Exception):
    """A row of a list has no position: pages that begin beyond it would skip others."""


@dataclass(frozen=True)
class Edge:
    """The start of a page: beyond a position, or at it. The row itself may be gone."""

    position: str
    inclusive: bool = False


@dataclass(frozen=True)
class Entry(Generic[T_co]):
    """A row and its position. Positions sort as rows do, and no two rows share one."""

    position: str
    item: T_co


class Range(ABC, Generic[T_co]):
    """Rows in ascending order of their positions."""

    @property
    def order(self) -> str:
        """Name the order, so that a page token of another one is refused; "": it never changes."""
        return ""

    @abstractmethod
    def start(
        self, edge: Edge | None, limit: int, *, backward: bool
    ) -> Callable[[], Sequence[Entry[T_co]]]:
        """Begin to read; return a function that waits for the entries, in the order of reading.

        Args:
            edge: Read beyond it; None: from the first row, or backward from the last one.
            limit: Entries to return. Fewer mean that the range has ended.
            backward: Read in descending order.
        """


class KeyRange(Range[Any]):
    """The root entities of a kind whose key names begin with a text, by key.

    Backward reading needs an entry in index.yaml, as Datastore keeps no built-in index of
    descending keys: `kind`, with the properties of the equality filters and `__key__` descending.

    The Datastore emulator sorts names by UTF-16, and the service by UTF-8. So characters above
    U+FFFF come before U+E000 there, and `Merged` may skip rows with either of them.
    """

    def __init__(self, kind: type[ndb.Model], prefix: str, *filters: Any) -> None:
        """Name the entities.

        Args:
            prefix: Common prefix of their names, at least one letter. The rest is the position.
            filters: Equality filters of ndb, e.g. `Book.shelf == "b"`.
        """
        if not prefix:
            raise ValueError("prefix of a key range must be at least one letter, got ''")
        self._kind = kind
        self._prefix = prefix
        self._end = _after(prefix)
        self._query = kind.query(*filters)

    def start(
        self, edge: Edge | None, limit: int, *, backward: bool
    ) -> Callable[[], Sequence[Entry[Any]]]:
        key = self._kind._key
        low, high = (ndb.Key(self._kind, name) for name in (self._prefix, self._end))
        at = edge and Edge(ndb.Key(self._kind, self._prefix + edge.position), edge.inclusive)
        query = self._query.filter(*_between(key, low, high, at, backward=backward))
        entities = query.order(-key if backward else key).fetch_async(limit)
        return lambda: [Entry(self._position(entity), entity) for entity in entities.result()]

    @property
    def order(self) -> str:
        return f"{self._kind._get_kind()} by key, {self._prefix}"

    def _position(self, entity: Any) -> str:
        if entity.key.parent() is not None:
            raise UnplacedRowError(
                f"{entity.key} must be a root entity to stand in a range of keys"
            )
        name: str = entity.key.id()
        return name[len(self._prefix) :]


class QueryRange(Range[Any]):
    """The entities that a query finds, by a property whose values differ from row to row.

    Without other filters Datastore's own index of the property serves both directions. With
    equality filters index.yaml needs two entries: their properties, then this one, ascending and
    descending.

    A repeated property can hold a row's place in several lists, each under a prefix of its own
    (`"tag:python|0000000007"`): then one property serves them all, and needs no entry.
    """

    def __init__(self, query: Any, by: Any, *, prefix: str = "") -> None:
        """Name the rows and their order.

        Args:
            query: A query of ndb with equality filters or an ancestor, without an order.
            by: An indexed property: text, whole number or time (naive, in UTC).
            prefix: Only texts that begin with this; the rest is the position. Exactly one value of
                a repeated property may begin with it.
        """
        if by._repeated and not prefix:
            raise ValueError(f"{by._name} is repeated: a prefix says which of its values is meant")
        self._query = query
        self._by = by
        self._prefix = prefix
        self._ends = (prefix, _after(prefix)) if prefix else (None, None)
        self._codec = _codec(by)

    def start(
        self, edge: Edge | None, limit: int, *, backward: bool
    ) -> Callable[[], Sequence[Entry[Any]]]:
        low, high = self._ends
        at = edge and Edge(self._codec.value(self._prefix + edge.position), edge.inclusive)
        query = self._query.filter(*_between(self._by, low, high, at, backward=backward))
        entities = query.order(-self._by if backward else self._by).fetch_async(limit)
        return lambda: [Entry(self._position(entity), entity) for entity in entities.result()]

    @property
    def order(self) -> str:
        return f"{self._query.kind} by {self._by._name} ({self._codec.name}), {self._prefix}"

    def _position(self, entity: Any) -> str:
        value = getattr(entity, self._by._code_name or self._by._name)
        if value is None:
            raise UnplacedRowError(
                f"{entity.key} must have a value of {self._by._name!r}, by which its list is read"
            )
        if self._by._repeated:
            value = next(place for place in value if place.startswith(self._prefix))
        return self._codec.text(value)[len(self._prefix) :]


# Of ndb's properties of times, those whose values are none.
_PARTS_OF_TIMES = (ndb.DateProperty, ndb.TimeProperty)


@dataclass(frozen=True)
class _PositionCodec:
    """A property's values as texts that sort alike, and back."""

    name: str
    text: Callable[[Any], str]
    value: Callable[[str], Any]


def _after(prefix: str) -> str:
    """Return the first text behind all that begin with a prefix, by UTF-8 and by UTF-16 alike.

    >>> _after("tag:python|")
    'tag:python}'
    """
    prefix.encode()  # A surrogate has no bytes: UnicodeEncodeError is a ValueError.
    if prefix[-1] in _WITHOUT_NEXT:
        raise ValueError(f"a prefix must not end in U+{ord(prefix[-1]):04X}: end it with e.g. '|'")
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _codec(by: Any) -> _PositionCodec:
    if isinstance(by, ndb.StringProperty):
        return _PositionCodec("text", str, str)
    if isinstance(by, ndb.DateTimeProperty) and not isinstance(by, _PARTS_OF_TIMES):
        return _PositionCodec("time", lambda at: number_key(microseconds(at)), _time_of)
    if isinstance(by, ndb.IntegerProperty):
        return _PositionCodec("number", number_key, number_of)
    raise TypeError(f"{by._name} must be an indexed text, whole number or time to order rows")


def _time_of(key: str) -> datetime.datetime:
    return (EPOCH + number_of(key) * MICROSECOND).replace(tzinfo=None)


def _between(by: Any, low: Any, high: Any, edge: Any, *, backward: bool) -> list[Any]:
    """Return the filters of a range: from low up to high, beyond an edge."""
    filters = []
    if edge is not None and not backward:
        low = None
        filters.append(by >= edge.position if edge.inclusive else by > edge.position)
    if edge is not None and backward:
        high = None
        filters.append(by <= edge.position if edge.inclusive else by < edge.position)
    if low is not None:
        filters.append(by >= low)
    if high is not None:
        filters.append(by < high)
    return filters
