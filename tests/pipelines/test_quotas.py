"""Quotas: what visitors may have under way, all together and each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.quotas import usage_key
from pipelines import quotas
from pipelines.quotas import MAX_ENTRIES, OverQuotaError, Quota, Work, reserve
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

QUOTA = Quota("quilt", "squares", total=100, per_visitor=60)
ANN = Work("a", "ann", 50, 10.0)


def units(world: World) -> int:
    """Return the units that are entered."""
    with world.context():
        row = usage_key(QUOTA.demo).get()
    return sum(entry[2] for entry in row.under_way) if row else 0


def enter(world: World, *many: Work, quota: Quota = QUOTA) -> None:
    with world.context():
        for work in many:
            reserve(world.clients, quota, work)


def test_a_visitor_has_a_share_and_all_have_a_bound(world: World) -> None:
    """S27: one visitor's flood leaves room for others, and many floods are bounded together."""
    enter(world, ANN)

    with pytest.raises(OverQuotaError, match="you have 50 squares under way"):
        enter(world, replace(ANN, id="b"))
    enter(world, Work("c", "bob", 50, 10.0))
    with pytest.raises(OverQuotaError, match="visitors have 100 squares under way"):
        enter(world, Work("d", "eve", 1, 10.0))
    assert units(world) == 100


def test_what_is_entered_again_counts_once(world: World) -> None:
    """S27: a form that is sent twice is one piece of work, and is not refused either."""
    enter(world, ANN, ANN, ANN)

    assert units(world) == 50


def test_an_entry_counts_for_as_long_as_its_work_takes(world: World) -> None:
    """S27: nothing gives it back, so a worker that dies leaves nothing behind."""
    enter(world, ANN)

    with pytest.raises(OverQuotaError) as refused:
        enter(world, replace(ANN, id="b"))
    world.clock.sleep(refused.value.retry_after_s)
    enter(world, replace(ANN, id="b"))

    assert refused.value.retry_after_s == 10
    assert units(world) == 50


@pytest.mark.parametrize(("is_serial", "left"), [(True, 60), (False, 30)])
def test_work_that_is_done_one_after_the_other_is_over_later(
    world: World, is_serial: bool, left: int
) -> None:
    """S27: ten starts at once take ten times as long, where they share the workers."""
    quota = replace(QUOTA, is_serial=is_serial)
    small = replace(ANN, units=30)
    enter(world, small, replace(small, id="b"), quota=quota)

    world.clock.sleep(11)
    enter(world, replace(small, id="c"), quota=quota)
    assert units(world) == left


def test_somebody_with_nothing_under_way_may_start_anything(world: World) -> None:
    """S27: a large file is no flood."""
    enter(world, replace(ANN, units=1_000))

    assert units(world) == 1_000


def test_a_row_of_entries_stays_small(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S27: many pieces of work of next to no units are too many, too."""
    monkeypatch.setattr(quotas, "MAX_ENTRIES", 3)
    enter(world, *(Work(f"w{number}", f"v{number}", 1, 10.0) for number in range(3)))

    with pytest.raises(OverQuotaError):
        enter(world, Work("w3", "v3", 1, 10.0))
    assert MAX_ENTRIES > 100
