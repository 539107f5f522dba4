"""Notices: the first change of a topic is published at once, the next ones together."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from rollforward.runtime import Clients, flusher
from rollforward.runtime.notices import OWNER, Notices, notices
from rollforward.runtime.process.process_state import ProcessState

pytestmark = pytest.mark.fast


class Published:
    """Clients that note which topics were published."""

    def __init__(self) -> None:
        self.process_state = ProcessState()
        self.topics: list[str] = []
        self.during: Callable[[], None] = lambda: None
        self.context = contextlib.nullcontext

    def publish(self, topic: str) -> None:
        self.topics.append(topic)
        during, self.during = self.during, lambda: None
        during()

    def finish(self) -> None:
        self.process_state.finish_background_work(20)


@pytest.fixture
def published() -> Published:
    return Published()


@pytest.fixture
def ours(published: Published) -> Notices:
    return notices(cast(Clients, cast(Any, published)))


def until_idle() -> None:
    ends_at = time.monotonic() + 30
    while any(thread.name == OWNER for thread in threading.enumerate()):
        assert time.monotonic() < ends_at, "the thread has not ended"
        time.sleep(0.005)


def test_the_first_change_is_published_at_once_and_the_others_share_a_notice(
    published: Published, ours: Notices
) -> None:
    for _ in range(5):
        ours.publish("sums")
    ours.publish("grades")
    at_once = list(published.topics)

    until_idle()

    assert at_once == ["sums", "grades"]
    assert published.topics == ["sums", "grades", "sums"]
    assert ours.is_empty()


def test_a_lone_change_has_one_notice(published: Published, ours: Notices) -> None:
    ours.publish("sums")
    until_idle()
    ours.publish("sums")
    until_idle()

    assert published.topics == ["sums", "sums"]


def test_a_change_during_a_notice_has_a_later_one(published: Published, ours: Notices) -> None:
    """The watcher that the notice woke may have read before the change."""
    ours.publish("sums")
    ours.publish("sums")
    published.during = lambda: ours.publish("sums")

    until_idle()

    assert published.topics == ["sums"] * 3


def test_the_last_request_of_a_process_publishes_the_rest(
    published: Published, ours: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours._flusher, "_period_s", 3_600)
    ours.publish("sums")
    ours.publish("sums")

    published.finish()

    assert published.topics == ["sums", "sums"]


def test_the_end_of_a_process_publishes_the_rest(
    published: Published, ours: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours._flusher, "_period_s", 3_600)
    ours.publish("sums")
    ours.publish("sums")

    published.process_state.shutdown()

    assert published.topics == ["sums", "sums"]
    until_idle()


def test_a_change_for_which_no_thread_could_start_is_published_with_the_next(
    published: Published, ours: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as no_threads:
        no_threads.setattr(flusher, "start_daemon", lambda *_: False)
        ours.publish("sums")
        ours.publish("sums")
    ours.publish("sums")

    until_idle()

    assert published.topics == ["sums", "sums"]
