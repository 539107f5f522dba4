"""Comparisons: a sample school is filled once, and measured in each way."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.grades import comparison, imports
from pipelines.grades.comparison import BY_AGGREGATION, FROM_VIEW, ONE_BY_ONE, SAMPLES
from pipelines.grades.views import GRADES
from tests.infra.world import World
from tests.pipelines.grades.schools import LIST, bars, settled


def status_of(world: World, school: str) -> Any:
    """Return where the comparison of a school stands."""
    with world.context():
        [found] = comparison.statuses(world.clients, [school])
        return found


def test_a_sample_school_is_filled_once_and_measured(world: World) -> None:
    """All ways say the same; reading the view costs a read a bar, counting one a student."""
    school = "sample-100"
    with world.context():
        assert comparison.statuses(world.clients, [school])[0].state == "empty"
        comparison.compare(world.clients, school, "m1")
        assert comparison.statuses(world.clients, [school])[0].state == "filling"
    world.settle()
    measured = status_of(world, school)
    assert measured.state == "measured"
    ways = measured.comparison.ways

    assert ways[ONE_BY_ONE]["reads"] == SAMPLES[school]
    assert ways[FROM_VIEW]["reads"] == len(bars(world, school)) + 2
    assert ways[FROM_VIEW]["agrees"] is True
    if world.services.datastore_kind == "firestore":
        assert ways[BY_AGGREGATION]["agrees"] is True
        assert ways[BY_AGGREGATION]["reads"] == 12
    else:
        assert ways[BY_AGGREGATION] is None

    settled(world, comparison.compare, school, "m2")
    assert status_of(world, school).comparison.measured == "m2"
    assert sum(count for count, _ in bars(world, school).values()) == SAMPLES[school]


def test_a_measurement_is_kept_once(world: World) -> None:
    """Asked for twice it is one task; an old one that comes late changes nothing."""
    settled(world, comparison.compare, "sample-100", "m1")
    with world.context():
        comparison.compare(world.clients, "sample-100", "m2")
        comparison.compare(world.clients, "sample-100", "m2")
        assert comparison.statuses(world.clients, ["sample-100"])[0].state == "measuring"
    world.settle()
    before = status_of(world, "sample-100").comparison

    settled(world, comparison.measure.enqueue, comparison.Measure("sample-100", "m1"))

    after = status_of(world, "sample-100").comparison
    assert (after.measured, after.ways, after.at) == ("m2", before.ways, before.at)


def test_a_fill_waits_for_its_view(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With so many updates waiting its next page is retried; nothing is parked or lost."""
    monkeypatch.setattr(comparison, "MAX_WAITING", 1)
    with world.context():
        comparison.compare(world.clients, "sample-100", "m1")
        GRADES.save(world.clients, imports.made_up("sample-100", LIST, 1))
    pages = [due for due in world.engine.due() if "/queues/imports/" in due.task_name]

    statuses = [world.deliver(page.task_name) for page in pages]

    assert set(statuses) == {409}
    world.settle()
    assert (
        sum(count for count, _ in bars(world, "sample-100").values()) == SAMPLES["sample-100"] + 1
    )
