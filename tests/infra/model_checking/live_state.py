"""The live state of a paused process: its frames with their variables, as something to compare.

Two runs of the same code that are paused at the same place, with equal variables, go on alike,
whatever the answers were by which each came there. So they are one state of a search. Nothing is
lost:

- All that a run knows is in its frames, or is reached from their variables: closures, attributes,
  generators, the state of random numbers. What is reached by several ways stays one thing.
- A value of a kind that is not known here equals nothing, not even itself: then states stay apart.
- Declarations (classes, modules, the constants of a search) do not change during a search.
- What an interpreter holds between two calls of one expression has no name. The code that is
  searched holds nothing there but open `with` blocks and loops, whose place their variables tell.

A test searches small cases by their histories, too, and finds the same ends.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import random
import threading
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from google.cloud import ndb

_ATOMS = (bool, int, float, str, bytes, datetime.datetime, datetime.timedelta, datetime.date)
_LOCKS = (type(threading.Lock()), type(threading.RLock()))  # Held where the frames say so.
_unique = itertools.count()


class LiveState:
    """Reader of the live state of one paused process."""

    def __init__(self, constants: tuple[type, ...] = (), itself: object = None) -> None:
        """Know of nothing yet.

        Args:
            constants: Kinds of objects that do not change during a search.
            itself: What replays the process; it has the answers, which are not compared.
        """
        self._constants = (type, types.ModuleType, types.CodeType, *constants)
        self._itself = itself
        self._numbers: dict[int, int] = {}  # By identity: where a thing was met first.
        self._met: list[Any] = []  # Kept, so that no identity is used twice.

    def of_frames(self, frame: types.FrameType | None, until: types.CodeType) -> Hashable:
        """Return what is in a frame and its callers, up to the one that runs some code."""
        frames = []
        while frame is not None and frame.f_code is not until:
            frames.append(self._of_frame(frame))
            frame = frame.f_back
        return tuple(frames)

    def of(self, value: Any) -> Hashable:
        """Return a value as something to compare."""
        if value is None or isinstance(value, _ATOMS):
            return type(value), value
        if value is self._itself:
            return "itself"
        if isinstance(value, self._constants):
            return "constant", id(value)
        if isinstance(value, ndb.Key):
            return "key", value.flat()
        if isinstance(value, _LOCKS):
            return "lock"
        if id(value) in self._numbers:
            return "met", self._numbers[id(value)]
        self._numbers[id(value)] = len(self._met)
        self._met.append(value)
        return type(value), self._contents(value)

    def _contents(self, value: Any) -> Hashable:
        for kind, read in _READERS:
            if isinstance(value, kind):
                return read(self, value)
        slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
        if slots or hasattr(value, "__dict__"):
            in_slots = [(name, getattr(value, name, None)) for name in slots if name[:2] != "__"]
            return self.of_all([*in_slots, *getattr(value, "__dict__", {}).items()])
        return "unknown", next(_unique)

    def of_all(self, items: Iterable[tuple[Any, Any]]) -> Hashable:
        """Return pairs as something to compare, in their order."""
        return tuple((self.of(name), self.of(value)) for name, value in items)

    def _of_frame(self, frame: types.FrameType) -> Hashable:
        return id(frame.f_code), frame.f_lasti, self.of_all(frame.f_locals.items())

    # Kinds

    def _of_sequence(self, values: Iterable[Any]) -> Hashable:
        return tuple(self.of(value) for value in values)

    def _of_set(self, values: Iterable[Any]) -> Hashable:
        return tuple(self.of(value) for value in sorted(values, key=repr))

    def _of_mapping(self, values: Mapping[Any, Any]) -> Hashable:
        return self.of_all(values.items())

    def _of_row(self, row: Any) -> Hashable:
        names = [found._code_name for found in row._properties.values()]
        return self.of(row.key), self.of_all((name, getattr(row, name)) for name in names)

    def _of_function(self, function: types.FunctionType) -> Hashable:
        cells = [_content(cell) for cell in function.__closure__ or ()]
        inside = (cells, function.__defaults__, function.__kwdefaults__)
        return id(function.__code__), self._of_sequence(inside)

    def _of_method(self, method: types.MethodType | types.BuiltinMethodType) -> Hashable:
        return method.__name__, self.of(method.__self__)

    def _of_partial(self, partial: functools.partial[Any]) -> Hashable:
        return self._of_sequence([partial.func, partial.args, partial.keywords])

    def _of_random(self, source: random.Random) -> Hashable:
        return source.getstate()

    def _of_error(self, error: BaseException) -> Hashable:
        return self._of_sequence([error.args, vars(error), error.__cause__])

    def _of_generator(self, generator: types.GeneratorType[Any, Any, Any]) -> Hashable:
        frame = generator.gi_frame
        return None if frame is None else self._of_frame(frame)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # It has none yet.
        return None


_READERS: list[tuple[Any, Callable[[LiveState, Any], Hashable]]] = [
    ((list, tuple), LiveState._of_sequence),
    ((set, frozenset), LiveState._of_set),
    ((dict, types.MappingProxyType), LiveState._of_mapping),
    (ndb.Model, LiveState._of_row),
    (types.FunctionType, LiveState._of_function),
    ((types.MethodType, types.BuiltinMethodType), LiveState._of_method),
    (functools.partial, LiveState._of_partial),
    (random.Random, LiveState._of_random),
    (BaseException, LiveState._of_error),
    (types.GeneratorType, LiveState._of_generator),
]
