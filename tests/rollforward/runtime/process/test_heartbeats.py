"""Heartbeats of a process: they continue while work runs, even if one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from google.api_core.exceptions import DeadlineExceeded

from rollforward.runtime.process.heartbeats import ThreadedHeart

pytestmark = pytest.mark.fast

# A test that would hang fails instead.
PATIENCE_S = 30


def counted(calls: int, done: threading.Event) -> Callable[[], None]:
    """Return a beat that sets `done` at its last call."""
    beats: list[int] = []

    def beat() -> None:
        beats.append(1)
        if len(beats) == calls:
            done.set()

    return beat


def test_beats_come_until_the_work_is_done() -> None:
    """One after another, and none is kept when the block has ended."""
    heart, done = ThreadedHeart(), threading.Event()

    with heart.heartbeat(counted(3, done), every_s=0.001):
        assert done.wait(PATIENCE_S)

    assert not heart._heartbeats


def test_work_that_is_done_in_time_has_no_beat() -> None:
    """Work that ends before its first beat is due makes none."""
    heart, done = ThreadedHeart(), threading.Event()

    for _ in range(3):
        with heart.heartbeat(done.set, every_s=1000):
            pass

    assert not heart._heartbeats
    assert not done.is_set()


def test_work_goes_on_while_no_thread_can_start_and_later_work_has_beats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beats are hints: without a thread there are none, until one starts."""
    heart, done = ThreadedHeart(), threading.Event()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with heart.heartbeat(done.set, every_s=0.001):
            pass
    assert not heart._heartbeats

    with heart.heartbeat(done.set, every_s=0.001):
        assert done.wait(PATIENCE_S)


def test_a_beat_that_fails_stops_no_other() -> None:
    """Its own next beat and the beats of other work are made."""
    heart, failed, done = ThreadedHeart(), threading.Event(), threading.Event()
    failing = counted(3, failed)

    def fail() -> None:
        failing()
        raise RuntimeError("no answer")

    with heart.heartbeat(fail, every_s=0.001), heart.heartbeat(counted(3, done), every_s=0.001):
        assert failed.wait(PATIENCE_S)
        assert done.wait(PATIENCE_S)


def test_a_beat_that_finds_a_service_away_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """It is handled by the next beat, so nobody has to read a traceback."""
    heart, failed = ThreadedHeart(), threading.Event()
    failing = counted(2, failed)

    def fail() -> None:
        failing()
        raise DeadlineExceeded("slow")

    with heart.heartbeat(fail, every_s=0.001):
        assert failed.wait(PATIENCE_S)

    # A beat of the test before may still fail, and then it is logged here.
    logged = [record for record in caplog.records if "slow" in caplog.handler.format(record)]
    assert logged
    assert {record.levelname for record in logged} == {"WARNING"}
    assert not any(record.exc_info for record in logged)


def test_short_work_beats_beside_long_work() -> None:
    """A heart that sleeps until a beat far ahead wakes up for a nearer one."""
    heart, done = ThreadedHeart(), threading.Event()

    with heart.heartbeat(lambda: None, every_s=1000):
        while heart._wakes_s == float("inf"):
            pass  # Until it sleeps.
        with heart.heartbeat(counted(2, done), every_s=0.001):
            assert done.wait(PATIENCE_S)
