"""Steps beside requests, in a process whose processor goes with the last response."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rollforward.runtime.process import daemons
from rollforward.streams.driver import Engine
from rollforward.streams.exchange.background_steps import BackgroundSteps
from rollforward.streams.storage.remote_calls import Pause
from tests.infra.stack import until
from tests.rollforward.streams.workers.test_pace import PIPELINE, bare_clients

pytestmark = pytest.mark.fast

HOURS_S = 10_000.0


def steps(log: list[str], pause_s: float = HOURS_S) -> Iterator[Any]:
    log.append("begun")
    yield Pause(pause_s)
    log.append("ended")


def test_the_last_request_has_deferred_wake_ups_made_at_once() -> None:
    """B5: the processor goes with the response; they would be made with the next request."""
    clients, log = bare_clients(), list[str]()
    run_in_background: Any = Engine(clients, PIPELINE).environment.run_in_background

    for _ in range(2):
        run_in_background(steps(log))
        until(lambda: log[-1:] == ["begun"], 20)
        clients.process_state.finish_background_work(20)

        assert log[-1] == "ended"
    assert log == ["begun", "ended"] * 2


def test_without_a_last_request_they_wait_for_their_time() -> None:
    log = list[str]()
    run_in_background: Any = Engine(bare_clients(), PIPELINE).environment.run_in_background

    run_in_background(steps(log, 0.3))
    until(lambda: log[-1:] == ["begun"], 20)
    began_s = time.monotonic()
    until(lambda: log[-1] == "ended", 20)

    assert time.monotonic() - began_s > 0.1


def test_a_request_waits_for_steps_that_hang_no_longer_than_it_says() -> None:
    may_end = threading.Event()
    background = BackgroundSteps()
    background.start(may_end.wait)
    began_s = time.monotonic()

    background.finish(0.05)

    assert time.monotonic() - began_s < 20
    may_end.set()
    background.finish(20)
    until(lambda: background._running == 0, 20)


def test_a_process_without_room_for_a_thread_waits_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")

    background = BackgroundSteps()
    monkeypatch.setattr(daemons.threading, "Thread", refuse)

    assert not background.start(lambda: None)
    background.finish(20)
    assert background._running == 0
