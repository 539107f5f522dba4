"""The first page: how much needs attention, and that there may be more than was counted."""

from __future__ import annotations

import re

import pytest

from rollforward.console.pages import overview
from rollforward.registry import Registry
from rollforward.tasks.attempt_entities import TaskAttempts
from rollforward.tasks.pattern import Gauge
from tests.rollforward.console.conftest import Desk
from tests.rollforward.console.test_pages import Browser


def test_the_overview_names_a_cloud_tasks_that_does_not_answer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks are kept, and the page is shown all the same."""
    states = {"datastore": True, "tasks": False, "memcached": True}
    monkeypatch.setattr(overview, "service_states", lambda: states)

    assert "Cloud Tasks does not answer" in Browser(desk).read("/")


@pytest.mark.parametrize(("count", "plus", "suffix"), [(2, "", ""), (3, "+", " or more")])
def test_the_overview_says_where_it_stopped_to_count(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, count: int, plus: str, suffix: str
) -> None:
    """As many as it counts may be more; fewer are all."""
    for name in ("MAX_COUNTED", "MAX_FAILING", "MAX_FAILED"):
        monkeypatch.setattr(overview, name, 3)
    flows = desk.world.registry.patterns["flows"]
    monkeypatch.setattr(flows, "count_failed", lambda limit: min(limit, count))
    now = desk.world.clock.now().replace(tzinfo=None)
    for number in range(count):
        desk.give_up(str(number))
        with desk.world.context():
            TaskAttempts(id=str(number), path="/tasks/ship", first=now, expires=now).put()

    text = Browser(desk).read("/")

    tiles = dict(re.findall(r'href="/rollforward(/[^"]*)"><b>([^<]*)</b>', text))
    assert tiles == {
        "/dead": f"{count}{plus}",
        "/runs?state=failed": f"{count}{plus}",
        "/waiting": f"{count}{plus}",
        "/outbox": "0",
    }
    assert f"{count} dead tasks{suffix} to replay or delete" in text
    assert f"{count} tasks{suffix} failed and will be retried" in text
    assert f"{count} flows{suffix} failed: retry or cancel" in text


def test_tasks_that_no_version_knows_are_told_from_failures(desk: Desk) -> None:
    """A deployment that lacks a task: it was shown as a failure, 0 times, without an error."""
    now = desk.world.clock.now().replace(tzinfo=None)
    with desk.world.context():
        TaskAttempts(id="a", path="/tasks/a", first=now, expires=now, failures=2).put()
        row = TaskAttempts(id="b", path="/tasks/b", first=now, expires=now)
        row.unknown_since = row.unknown_at = now
        row.put()

    overview_text, waiting_text = (Browser(desk).read(path) for path in ("/", "/waiting"))

    assert "1 task failed and will be retried" in overview_text
    assert "1 task unknown to this version of the code: deploy one" in overview_text
    assert "waits for a version of the code that knows it" in waiting_text


def test_the_overview_names_gauges_above_their_alerts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a key of a lane that somebody paused and forgot: the page said that there is no alert."""
    gauges = [
        Gauge("lanes_paused", "", value, {"lane": lane})
        for lane, value in (("by-buyer", 1), ("by-user", 0))
    ]
    monkeypatch.setattr(Registry, "read_gauges", lambda self, clients: (gauges, ["flows"]))

    text = Browser(desk).read("/")

    assert "lanes_paused is above 0: by-buyer<" in text
    assert "The gauges cannot be read of flows" in text
    assert "No alerts" not in text
