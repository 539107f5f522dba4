"""Memory of a process: one object an owner, and acts at its shutdown."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rollforward.runtime.process.process_state import ProcessState
from rollforward.testing.world import in_threads

pytestmark = pytest.mark.fast

TIMEOUT_S = 5


class Waits(dict[str, Any]):
    """A dict that lets two threads miss before either continues."""

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Barrier(2)

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        if value is None and not self._both.broken:
            try:
                self._both.wait(TIMEOUT_S)
            except threading.BrokenBarrierError:
                pass
            else:
                self._both.abort()  # Whoever looks again, looks alone.
        return value


def test_the_act_before_the_end_is_that_of_the_object_that_is_kept() -> None:
    """Two threads ask first at the same moment: one object is made, and it alone acts."""
    process_state, ended = ProcessState(), list[object]()
    process_state._objects = Waits()

    class Keeper:
        def __init__(self) -> None:
            process_state.on_shutdown("keeper", lambda: ended.append(self))

    got: list[Keeper] = []
    in_threads(*[lambda: got.append(process_state.get_or_create("keeper", Keeper))] * 2)
    process_state.shutdown()

    assert got[0] is got[1]
    assert ended == [got[0]]


def test_a_late_request_stops_no_act_before_the_end() -> None:
    """Acts that come while others are done change nothing for those; one that fails neither."""
    process_state, done = ProcessState(), list[str]()

    def first() -> None:
        process_state.on_shutdown("late", lambda: done.append("late"))
        raise OSError("made by a test")

    process_state.on_shutdown("first", first)
    process_state.on_shutdown("second", lambda: done.append("second"))

    process_state.shutdown()

    assert done == ["second"]
