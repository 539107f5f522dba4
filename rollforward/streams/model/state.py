"""Keyed state: a JSON object per key, with typed states for common shapes.

    ctx.state["last"] = record.value            # Any item, as in a dict.
    ctx.state.counter("hits").add(1)
    ctx.state.buffer("recent").add(record.timestamp_ms, record.value)

A typed state is a view of one item of it: it costs nothing until it is written. An empty list, map
or buffer, and a state without items, take no storage.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Protocol

from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.json_text import check_depth, decoded, encoder, quoted

# An entity has at most 1 MiB.
MAX_STATE_BYTES = 900_000
MAX_CHAR_BYTES = 12  # The largest JSON escape of one character.
MAX_TIMERS_BYTES = 500_000  # They share a row with those of other keys.
TIMER_BYTES = 50  # Without its tag.
FEW_TIMERS = MAX_TIMERS_BYTES // 2_500  # So few fit, however long their tags are.

_TIME = itemgetter(0)
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_encode = encoder(allow_nan=False)


def check_size(text: str) -> None:
    """Check that a row can hold a state: as a JSON string, in which a quote takes two bytes.

    Raises:
        BadRecordError: it is too large, or nested too deeply.
    """
    check_depth(text)
    if len(text) > MAX_STATE_BYTES // MAX_CHAR_BYTES:
        size = len(quoted(text))
        if size > MAX_STATE_BYTES:
            raise BadRecordError(f"a state must have at most {MAX_STATE_BYTES} bytes, got {size}")


def check_timers(tags: Collection[str]) -> None:
    """Check that a row can hold the timers of a key.

    Raises:
        BadRecordError: they are too large together.
    """
    if len(tags) > FEW_TIMERS:
        size = sum(len(quoted(tag)) + TIMER_BYTES for tag in tags)
        if size > MAX_TIMERS_BYTES:
            raise BadRecordError(
                f"the timers of a key must have at most {MAX_TIMERS_BYTES} bytes, got {size}"
            )


class Codec(Protocol):
    """Serializer of a state to text and back."""

    def dump(self, items: dict[str, Any]) -> str: ...

    def load(self, text: str) -> dict[str, Any]: ...


class JsonCodec:
    """A state as JSON."""

    def dump(self, items: dict[str, Any]) -> str:
        return _encode(items)

    def load(self, text: str) -> dict[str, Any]:
        items: dict[str, Any] = decoded(text)
        return items


JSON = JsonCodec()


def _checked(name: Any) -> str:
    """Return the name of an item, checked.

    Raises:
        BadRecordError: it is no text. JSON makes one of it, by which the item is not found again.
    """
    if not isinstance(name, str):
        raise BadRecordError(f"the name of an item of a state must be a text, got {name!r:.100}")
    return name


class State(MutableMapping[str, Any]):
    """The items of one key's state."""

    __slots__ = ("_items",)

    def __init__(self, items: dict[str, Any]) -> None:
        self._items = items

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._items[_checked(name)] = value

    def __delitem__(self, name: str) -> None:
        del self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def part(self, name: str) -> State:
        """Return an item as a state of its own."""
        return State(self._items.setdefault(name, {}))

    def value(self, name: str, default: Any = None) -> ValueState:
        """Return a typed state for one value."""
        return ValueState(self._items, name, default)

    def counter(self, name: str) -> CounterState:
        """Return a typed state for a number, which begins at 0."""
        return CounterState(self._items, name)

    def list(self, name: str) -> ListState:
        """Return a typed state for a list."""
        return ListState(self._items, name)

    def map(self, name: str) -> MapState:
        """Return a typed state for a map from text to values."""
        return MapState(self._items, name)

    def buffer(self, name: str) -> BufferState:
        """Return a typed state for values in order of time."""
        return BufferState(self._items, name)


class _TypedState:
    __slots__ = ("_items", "_name")

    def __init__(self, items: dict[str, Any], name: str) -> None:
        self._items = items
        self._name = _checked(name)

    def clear(self) -> None:
        """Delete its item."""
        self._items.pop(self._name, None)

    def _writable(self, kind: type[Any]) -> Any:
        """Return its item, created if it is missing.

        Raises:
            BadRecordError: the item has another type.
        """
        item = self._items.setdefault(self._name, kind())
        if not isinstance(item, kind):
            raise BadRecordError(
                f"{self._name!r} must be a {kind.__name__}, got a {type(item).__name__}"
            )
        return item

    def _readable(self, empty: Any) -> Any:
        return self._items.get(self._name, empty)


class ValueState(_TypedState):
    """One JSON value."""

    __slots__ = ("_default",)

    def __init__(self, items: dict[str, Any], name: str, default: Any) -> None:
        super().__init__(items, name)
        self._default = default

    def get(self) -> Any:
        return self._items.get(self._name, self._default)

    def set(self, value: Any) -> None:
        self._items[self._name] = value


class CounterState(_TypedState):
    """A number."""

    __slots__ = ()

    def get(self) -> Any:
        return self._items.get(self._name, 0)

    def add(self, amount: float = 1) -> Any:
        """Add an amount, return the sum."""
        total = self._items[self._name] = self._items.get(self._name, 0) + amount
        return total


class ListState(_TypedState):
    """A list, in the order in which it was written."""

    __slots__ = ()

    def append(self, value: Any) -> None:
        self._writable(list).append(value)

    def get(self) -> list[Any]:
        """Return a copy."""
        return list(self._readable(()))

    def set(self, values: list[Any]) -> None:
        self._items[self._name] = list(values)

    def __len__(self) -> int:
        return len(self._readable(()))


class MapState(_TypedState):
    """A map from text to values."""

    __slots__ = ()

    def get(self, key: str, default: Any = None) -> Any:
        return self._items.get(self._name, _NOTHING).get(str(key), default)

    def set(self, key: str, value: Any) -> None:
        self._writable(dict)[str(key)] = value

    def pop(self, key: str, default: Any = None) -> Any:
        """Remove a value, return it."""
        values = self._readable({})
        value = values.pop(str(key), default)
        if not values:
            self.clear()
        return value

    def add(self, key: str, amount: float = 1) -> Any:
        """Add an amount to the number under a key, return the sum."""
        values = self._writable(dict)
        total = values[str(key)] = values.get(str(key), 0) + amount
        return total

    def items(self) -> list[tuple[str, Any]]:
        """Return a copy of the items."""
        return list(self._readable({}).items())

    def __len__(self) -> int:
        return len(self._readable({}))

    def __contains__(self, key: str) -> bool:
        return str(key) in self._readable({})


class BufferState(_TypedState):
    """Values in order of their times; values of one time in order of arrival."""

    __slots__ = ()

    def add(self, at: int, value: Any) -> None:
        bisect.insort_right(self._writable(list), [at, value], key=_TIME)

    def between(self, start: int, end: int) -> list[tuple[int, Any]]:
        """Return the values from `start` on and before `end`, each with its time."""
        entries = self._readable(())
        low = bisect.bisect_left(entries, start, key=_TIME)
        high = bisect.bisect_left(entries, end, key=_TIME)
        return [(at, value) for at, value in entries[low:high]]

    def latest(self, until: int) -> tuple[int, Any] | None:
        """Return the last value at or before a time, with its time."""
        entries = self._readable(())
        high = bisect.bisect_right(entries, until, key=_TIME)
        return (entries[high - 1][0], entries[high - 1][1]) if high else None

    def drop_before(self, at: int) -> None:
        """Delete the values before a time."""
        entries = self._readable([])
        del entries[: bisect.bisect_left(entries, at, key=_TIME)]
        if not entries:
            self.clear()

    def __len__(self) -> int:
        return len(self._readable(()))
