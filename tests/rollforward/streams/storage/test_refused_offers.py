"""Pushes that are not offered to a worker, because both would gain nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollforward.streams.driver import Engine
from rollforward.streams.storage.joint_commits import MAX_RECORDS
from rollforward.streams.storage.remote_calls import Scan, StoredRow
from rollforward.streams.storage.schema import CHUNK, ON_TIME, chunk_id
from tests.rollforward.streams.storage.test_joint_commits import (
    ELSEWHERE,
    NAMES,
    Process,
    StoppedClock,
    pushed,
    reader,
    set_waits,
    stop_clock,
)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    set_waits(monkeypatch, 0, 0, 0)
    return stop_clock(monkeypatch)


def test_a_push_with_too_many_records_in_all_its_chunks_is_not_offered() -> None:
    """They all would go into the worker's commit."""
    half = MAX_RECORDS // 2
    small = NAMES.chunk("c", 0, ON_TIME, 1, chunk_id("a", "", half, 9))
    other, more = (
        NAMES.chunk("c", ELSEWHERE, ON_TIME, 1, chunk_id("b", "", records, 9))
        for records in (MAX_RECORDS - half, MAX_RECORDS)
    )
    process = reader()
    assert process.is_open(pushed(1, small, other))
    assert not process.is_open(pushed(1, small, more))


def test_a_worker_that_leaves_an_offer_gets_no_other_until_it_looks_again() -> None:
    """It is busy, or has left; each push would wait for it in vain."""
    process = reader()
    for number in (1, 2):
        process.commits.offer(pushed(number))
    assert len(process.woken) == 1
    assert process.is_open(pushed(3))


@pytest.mark.parametrize("work", [Process.commit, Process.begin], ids=["ended", "begun"])
def test_a_worker_that_takes_an_offer_gets_another(work: Callable[[Process], None]) -> None:
    process = reader(work)
    for number in (1, 2):
        process.commits.offer(pushed(number))
        process.taken = []
    assert len(process.woken) == 2


def test_a_worker_whose_answer_cannot_be_sent_has_given_its_offers_back() -> None:
    """They would stay with it, and keep further pushes of their sources from it."""
    here, away = reader(), Process()
    here.siblings, away.siblings = [away], [here]
    here.commits.announce(NAMES.inbox("c", 0))

    def broken(*message: object) -> bool:
        raise OSError("no descriptor is free")

    def fail(process: Process) -> None:
        process.begin()
        process.commits._send = broken
        with pytest.raises(OSError, match="descriptor"):
            process.end()

    here.work = fail
    assert away.commits.offer(pushed(1)) is None
    assert here.commits._offers == {}


def test_a_bundle_takes_as_many_offers_as_its_scan_has_left_room_for() -> None:
    asked = list[int]()

    def take(low: str, high: str, limit: int) -> list[Any]:
        asked.append(limit)
        return []

    engine = SimpleNamespace(_joint_commits=SimpleNamespace(take=take))
    scanned = [("a", StoredRow(None, 1)), ("b", StoredRow(None, 1))]
    assert Engine._with_offers(cast(Engine, engine), scanned, Scan(CHUNK, "a", "z", 20)) == scanned
    assert asked == [18]
