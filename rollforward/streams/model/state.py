"""The state of a key: a JSON object, with typed cells for what is often kept in one.

    ctx.state["last"] = record.value            # Any item, as in a dict.
    ctx.state.counter("hits").add(1)
    ctx.state.buffer("recent").add(record.timestamp_ms, record.value)

A cell is a view of one item of the state: it costs nothing until it is written. An empty list, map
or buffer, and a state without items, take no place.
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
MAX_CHAR_BYTES = 12  # Of one character as JSON has it, at most.
MAX_TIMERS_BYTES = 500_000  # They stand beside those of other keys.
TIMER_BYTES = 50  # Besides its tag.
FEW_TIMERS = MAX_TIMERS_BYTES // 2_500  # However long their tags are.

_TIME = itemgetter(0)
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_encode = encoder(allow_nan=False)


def check_size(text: str) -> None:
    """Check that a row can hold a state: as a text in JSON, where quotes take two bytes.

    Raises:
        BadRecordError: it is too large, or too deep.
    """
    check_depth(text)
    if len(text) > MAX_STATE_BYTES // MAX_CHAR_BYTES:
        size = len(quoted(text))
        if size > MAX_STATE_BYTES:
            raise BadRecordError(f"a state has at most {MAX_STATE_BYTES} bytes, not {size}")


def check_timers(tags: Collection[str]) -> None:
    """Check that a row can hold the timers of a key.

    Raises:
        BadRecordError: they are too many.
    """
    if len(tags) > FEW_TIMERS:
        size = sum(len(quoted(tag)) + TIMER_BYTES for tag in tags)
        if size > MAX_TIMERS_BYTES:
            raise BadRecordError(
                f"the timers of a key must have at most {MAX_TIMERS_BYTES} bytes, got {size}"
            )


class Codec(Protocol):
    """How a state is written as text."""

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


class State(MutableMapping[str, Any]):
    """The items of one key's state."""

    __slots__ = ("_items",)

    def __init__(self, items: dict[str, Any]) -> None:
        self._items = items

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._items[name] = value

    def __delitem__(self, name: str) -> None:
        del self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def part(self, name: str) -> State:
        """Return an item as a state of its own."""
        return State(self._items.setdefault(name, {}))

    def value(self, name: str, default: Any = None) -> ValueCell:
        """Return a cell for one value."""
        return ValueCell(self._items, name, default)

    def counter(self, name: str) -> CounterCell:
        """Return a cell for a number, which begins at 0."""
        return CounterCell(self._items, name)

    def list(self, name: str) -> ListCell:
        """Return a cell for a list."""
        return ListCell(self._items, name)

    def map(self, name: str) -> MapCell:
        """Return a cell for a map from text to values."""
        return MapCell(self._items, name)

    def buffer(self, name: str) -> BufferCell:
        """Return a cell for values in order of time."""
        return BufferCell(self._items, name)


class _Cell:
    __slots__ = ("_items", "_name")

    def __init__(self, items: dict[str, Any], name: str) -> None:
        self._items = items
        self._name = name

    def clear(self) -> None:
        """Forget what is in the cell."""
        self._items.pop(self._name, None)

    def _kept(self, kind: type[Any]) -> Any:
        """Return what is in the cell, made if there is nothing yet.

        Raises:
            BadRecordError: the state has something else of this name.
        """
        kept = self._items.setdefault(self._name, kind())
        if not isinstance(kept, kind):
            raise BadRecordError(f"{self._name!r} is a {type(kept).__name__}, not {kind.__name__}")
        return kept

    def _seen(self, empty: Any) -> Any:
        return self._items.get(self._name, empty)


class ValueCell(_Cell):
    """One value, of any kind that JSON knows."""

    __slots__ = ("_default",)

    def __init__(self, items: dict[str, Any], name: str, default: Any) -> None:
        super().__init__(items, name)
        self._default = default

    def get(self) -> Any:
        return self._items.get(self._name, self._default)

    def set(self, value: Any) -> None:
        self._items[self._name] = value


class CounterCell(_Cell):
    """A number."""

    __slots__ = ()

    def get(self) -> Any:
        return self._items.get(self._name, 0)

    def add(self, amount: float = 1) -> Any:
        """Add an amount, return the sum."""
        total = self._items[self._name] = self._items.get(self._name, 0) + amount
        return total


class ListCell(_Cell):
    """A list, in the order in which it was written."""

    __slots__ = ()

    def append(self, value: Any) -> None:
        self._kept(list).append(value)

    def get(self) -> list[Any]:
        """Return a copy."""
        return list(self._seen(()))

    def set(self, values: list[Any]) -> None:
        self._items[self._name] = list(values)

    def __len__(self) -> int:
        return len(self._seen(()))


class MapCell(_Cell):
    """A map from text to values."""

    __slots__ = ()

    def get(self, key: str, default: Any = None) -> Any:
        return self._items.get(self._name, _NOTHING).get(key, default)

    def set(self, key: str, value: Any) -> None:
        self._kept(dict)[str(key)] = value

    def pop(self, key: str, default: Any = None) -> Any:
        """Take a value out, return it."""
        found = self._seen({})
        value = found.pop(key, default)
        if not found:
            self.clear()
        return value

    def add(self, key: str, amount: float = 1) -> Any:
        """Add an amount to the number under a key, return the sum."""
        found = self._kept(dict)
        total = found[str(key)] = found.get(str(key), 0) + amount
        return total

    def items(self) -> list[tuple[str, Any]]:
        """Return a copy of what is in it."""
        return list(self._seen({}).items())

    def __len__(self) -> int:
        return len(self._seen({}))

    def __contains__(self, key: str) -> bool:
        return key in self._seen({})


class BufferCell(_Cell):
    """Values in order of their times; those of one time in the order in which they came."""

    __slots__ = ()

    def add(self, at: int, value: Any) -> None:
        bisect.insort_right(self._kept(list), [at, value], key=_TIME)

    def between(self, start: int, end: int) -> list[tuple[int, Any]]:
        """Return what lies at `start` or later, and before `end`, each with its time."""
        found = self._seen(())
        low = bisect.bisect_left(found, start, key=_TIME)
        high = bisect.bisect_left(found, end, key=_TIME)
        return [(at, value) for at, value in found[low:high]]

    def latest(self, until: int) -> tuple[int, Any] | None:
        """Return the last value at a time or before it, with its time."""
        found = self._seen(())
        high = bisect.bisect_right(found, until, key=_TIME)
        return (found[high - 1][0], found[high - 1][1]) if high else None

    def drop_before(self, at: int) -> None:
        """Forget what lies before a time."""
        found = self._seen([])
        del found[: bisect.bisect_left(found, at, key=_TIME)]
        if not found:
            self.clear()

    def __len__(self) -> int:
        return len(self._seen(()))
