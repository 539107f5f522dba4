"""Notifications of an inbox: each published chunk reaches its worker once."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator

import pytest

from rollforward.runtime.process.process_state import ProcessState
from rollforward.runtime.process.worker_bus import FOLDER, MAX_BYTES
from rollforward.streams.storage import inbox_hints
from rollforward.streams.storage.inbox_hints import (
    MAX_HINTS,
    MAX_SCAN_PERIOD_S,
    SCAN_PERIOD_S,
    InboxHint,
    InboxHints,
)
from rollforward.streams.storage.schema import CHUNK, LATE, ON_TIME, InboxRecord, Names
from rollforward.streams.storage.serde import dump
from tests.infra.stack import until

NAMES = Names("p")
INBOX = NAMES.inbox("c", 0)
LOW, HIGH = NAMES.inbox_range("c", 0, 0)
WAITED_FOR_S, STEP_S = 30.0, 0.004
BODY = (InboxRecord("k", 1, "in", "", "1"),)


class StoppedClock:
    """The clock of the hints, which only a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    stopped = StoppedClock()
    monkeypatch.setattr(inbox_hints, "time", stopped)
    return stopped


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An instance of several processes; the name of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv(FOLDER, folder)
        yield


def chunk(number: int, *, lane: int = ON_TIME, body: object = BODY) -> InboxHint:
    name = NAMES.chunk("c", 0, lane, 1, f"n{number:03d}").name
    return InboxHint(name, number, dump(CHUNK, body), body)


def look(hints: InboxHints, *chunks: InboxHint) -> None:
    hints.take(LOW, HIGH, 1)  # This registers the reader.
    hints.begin_scan(LOW)
    hints.end_scan(LOW, {chunk.name for chunk in chunks})


def known(hints: InboxHints, limit: int = 10) -> list[tuple[str, int]]:
    return [(name, row.version) for name, row in hints.take(LOW, HIGH, limit)]


def test_what_has_come_is_taken_once_and_in_order() -> None:
    hints = InboxHints()
    look(hints)
    hints.publish([chunk(2), chunk(1), chunk(3)])
    assert known(hints, 2) == [(chunk(1).name, 1), (chunk(2).name, 2)]
    assert known(hints) == [(chunk(3).name, 3)]
    assert known(hints) == []


def test_what_a_look_has_found_is_not_told_again() -> None:
    """Also if it is published after the scan."""
    hints = InboxHints()
    look(hints)
    hints.publish([chunk(1)])
    look(hints, chunk(1), chunk(2))
    hints.publish([chunk(2), chunk(3)])
    assert known(hints) == [(chunk(3).name, 3)]


@pytest.mark.parametrize("reason", ["late", "many", "nobody looks", "time"])
def test_who_cannot_be_told_all_looks(reason: str, clock: StoppedClock) -> None:
    hints = InboxHints()
    if reason != "nobody looks":
        look(hints)
    if reason == "time":
        clock.now_s += MAX_SCAN_PERIOD_S
    hints.publish([chunk(1)])
    if reason == "late":
        hints.publish([chunk(2, lane=LATE)])
    if reason == "many":
        hints.publish([chunk(n) for n in range(2, MAX_HINTS + 2)])
    assert known(hints) == []


def test_hints_tell_all_until_a_scan_is_due_or_has_found_a_chunk_without_one(
    clock: StoppedClock,
) -> None:
    """A chunk of another instance has none, and the next ones are likely to have none."""
    hints = InboxHints()
    assert not hints.is_complete(LOW)
    hints.take(LOW, HIGH, 1)
    assert not hints.is_complete(LOW)
    look(hints)
    assert hints.is_complete(LOW)
    clock.now_s += MAX_SCAN_PERIOD_S
    assert not hints.is_complete(LOW)

    hints.publish([chunk(1)])
    look(hints, chunk(1))
    assert hints.is_complete(LOW)
    look(hints, chunk(2))
    assert not hints.is_complete(LOW)
    look(hints)
    hints.publish([chunk(3, lane=LATE)])
    assert not hints.is_complete(LOW)


def test_nothing_is_kept_of_an_inbox_that_nobody_looks_into_any_more(clock: StoppedClock) -> None:
    hints = InboxHints()
    look(hints)
    hints.publish([chunk(1)])
    clock.now_s += MAX_SCAN_PERIOD_S
    hints.publish([chunk(2)])
    assert hints._inboxes[INBOX].hints == {}


def test_scans_are_rarer_while_hints_tell_all_and_frequent_after_one_without(
    clock: StoppedClock,
) -> None:
    hints, number = InboxHints(), 0
    look(hints)

    def scanned_after_s() -> float:
        """Publish chunk after chunk until one of them waits for a scan."""
        nonlocal number
        began_s = clock.now_s
        while True:
            number += 1
            hints.publish([chunk(number)])
            if known(hints) != [(chunk(number).name, number)]:
                return clock.now_s - began_s
            clock.now_s += STEP_S

    periods_s = []
    for _ in range(3):
        periods_s.append(scanned_after_s())
        look(hints, chunk(number))
    assert periods_s == pytest.approx([2 * SCAN_PERIOD_S, *[MAX_SCAN_PERIOD_S] * 2], abs=STEP_S)

    look(hints, chunk(999))  # Another instance has sent this one.
    assert scanned_after_s() == pytest.approx(SCAN_PERIOD_S, abs=STEP_S)


def test_another_process_is_told_with_the_chunk(instance: None) -> None:
    """A worker that waits for half a minute wakes; a chunk that is too long needs a scan."""
    reader, sender = ProcessState(), ProcessState()
    receiving, sending = InboxHints.of(reader), InboxHints.of(sender)
    look(receiving)
    waiting = threading.Thread(target=receiving.wait, args=[INBOX, WAITED_FOR_S], daemon=True)
    waiting.start()
    sending.publish([chunk(1)])
    waiting.join(WAITED_FOR_S / 2)
    assert not waiting.is_alive()
    [(name, row)] = receiving.take(LOW, HIGH, 10)
    assert (name, row.version, row.body) == (chunk(1).name, 1, BODY)

    long = InboxRecord("k", 1, "in", "", "1" * MAX_BYTES)
    sending.publish([chunk(2), chunk(3, body=(long,))])
    until(lambda: receiving._inboxes[INBOX].has_more, WAITED_FOR_S, every_s=0.01)
    assert known(receiving) == []
    reader.shutdown()
    sending.publish([chunk(4)])  # The receiver is gone.
    sender.shutdown()
