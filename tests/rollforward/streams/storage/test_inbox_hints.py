"""What has come to an inbox is told to who looks into it, once, as far as is known."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator

import pytest

from rollforward.runtime.process.process_state import ProcessState
from rollforward.runtime.process.worker_bus import FOLDER, MAX_BYTES
from rollforward.streams.storage import inbox_hints
from rollforward.streams.storage.inbox_hints import MAX_HINTS, InboxHint, InboxHints
from rollforward.streams.storage.schema import CHUNK, LATE, ON_TIME, InboxRecord, Names
from rollforward.streams.storage.serde import dump
from tests.infra.stack import until

NAMES = Names("p")
INBOX = NAMES.inbox("c", 0)
LOW, HIGH = NAMES.inbox_range("c", 0, 0)
WAITED_FOR_S = 30.0
BODY = (InboxRecord("k", 1, "in", "", "1"),)


@pytest.fixture(autouse=True)
def looks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_hints, "SCAN_PERIOD_S", 60)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An instance of several processes; the name of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv(FOLDER, folder)
        yield


def chunk(number: int, *, lane: int = ON_TIME, body: object = BODY) -> InboxHint:
    name = NAMES.chunk("c", 0, lane, 1, f"n{number:03d}").name
    return InboxHint(name, number, dump(CHUNK, body), body)


def look(here: InboxHints, *found: InboxHint) -> None:
    here.take(LOW, HIGH, 1)  # From now on somebody looks into it.
    here.begin_scan(LOW)
    here.end_scan(LOW, {each.name for each in found})


def known(here: InboxHints, limit: int = 10) -> list[tuple[str, int]]:
    return [(name, found.version) for name, found in here.take(LOW, HIGH, limit)]


def test_what_has_come_is_taken_once_and_in_order() -> None:
    here = InboxHints()
    look(here)
    here.publish([chunk(2), chunk(1), chunk(3)])
    assert known(here, 2) == [(chunk(1).name, 1), (chunk(2).name, 2)]
    assert known(here) == [(chunk(3).name, 3)]
    assert known(here) == []


def test_what_a_look_has_found_is_not_told_again() -> None:
    """Also if it is told behind the look."""
    here = InboxHints()
    look(here)
    here.publish([chunk(1)])
    look(here, chunk(1), chunk(2))
    here.publish([chunk(2), chunk(3)])
    assert known(here) == [(chunk(3).name, 3)]


@pytest.mark.parametrize("why", ["late", "many", "nobody looks", "time"])
def test_who_cannot_be_told_all_looks(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = InboxHints()
    if why != "nobody looks":
        look(here)
    if why == "time":
        monkeypatch.setattr(inbox_hints, "SCAN_PERIOD_S", -1)
    here.publish([chunk(1)])
    if why == "late":
        here.publish([chunk(2, lane=LATE)])
    if why == "many":
        here.publish([chunk(n) for n in range(2, MAX_HINTS + 2)])
    assert known(here) == []


def test_nothing_is_kept_of_an_inbox_that_nobody_looks_into_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = InboxHints()
    look(here)
    here.publish([chunk(1)])
    monkeypatch.setattr(inbox_hints, "SCAN_PERIOD_S", -1)
    here.publish([chunk(2)])
    assert here._inboxes[INBOX].hints == {}


def test_another_process_is_told_with_the_chunk(instance: None) -> None:
    """Who waits for half a minute wakes; a chunk that is too long is found by a look."""
    reader, sender = ProcessState(), ProcessState()
    there, here = InboxHints.of(reader), InboxHints.of(sender)
    look(there)
    waiting = threading.Thread(target=there.wait, args=[INBOX, WAITED_FOR_S], daemon=True)
    waiting.start()
    here.publish([chunk(1)])
    waiting.join(WAITED_FOR_S / 2)
    assert not waiting.is_alive()
    [(name, found)] = there.take(LOW, HIGH, 10)
    assert (name, found.version, found.body) == (chunk(1).name, 1, BODY)

    long = InboxRecord("k", 1, "in", "", "1" * MAX_BYTES)
    here.publish([chunk(2), chunk(3, body=(long,))])
    until(lambda: there._inboxes[INBOX].has_more, WAITED_FOR_S, every_s=0.01)
    assert known(there) == []
    reader.shutdown()
    here.publish([chunk(4)])  # Nobody is there.
    sender.shutdown()
