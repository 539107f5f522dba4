"""Gauges of views: updates that are not applied, and the lag that they mean."""

from __future__ import annotations

import pytest

from rollforward.materialized_views import pattern
from rollforward.materialized_views.pattern import MaterializedViews
from tests.infra.world import World
from tests.rollforward.materialized_views.student_views import BUILDS, SCHOOL, pupil


def gauges(here: World, name: str) -> dict[str, float]:
    """Return a gauge's value for each view."""
    found = MaterializedViews().gauges(here.clients, [BUILDS])
    return {gauge.labels["view"]: gauge.value for gauge in found if gauge.name == name}


def test_gauges_tell_the_lag_of_each_view(here: World) -> None:
    """From the save on, until the row holds it."""
    assert set(gauges(here, "views_waiting_updates").values()) == {0}
    SCHOOL.save(here.clients, pupil("ada", 1))
    here.clock.sleep(20)
    SCHOOL.save(here.clients, pupil("bob", 2))

    waiting, ages = gauges(here, "views_waiting_updates"), gauges(here, "views_oldest_seconds")
    here.settle()

    assert waiting["by_grade"] == 2
    assert ages["by_grade"] == pytest.approx(20, abs=2)
    assert set(gauges(here, "views_oldest_seconds").values()) == {0}
    assert set(gauges(here, "views_waiting_updates").values()) == {0}


def test_gauges_of_many_updates_tell_of_the_last_rows_too(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old update of the last row is not hidden by those of the first ones."""
    monkeypatch.setattr(pattern, "MAX_COUNTED", 4)
    SCHOOL.save(here.clients, pupil("old", 9))
    here.clock.sleep(20)
    for n in range(4):
        SCHOOL.save(here.clients, pupil(f"p{n}", 1))

    assert gauges(here, "views_oldest_seconds")["by_grade"] == pytest.approx(20, abs=2)
    assert gauges(here, "views_waiting_updates")["by_grade"] >= 3
