"""Sums: the directory, and additions that count once, however they are sent."""

from __future__ import annotations

import pytest

from models.sums import SumAddition
from pipelines.sums import reconciliation, sums
from pipelines.sums.sums import Count
from rollforward.testing.injection import REPLY_LOST
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.pipelines.sums.loading import LOAD, both_sides


def test_a_sum_is_made_once_and_there_are_not_too_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same name is the same sum; one more than there may be is refused."""
    monkeypatch.setattr(sums, "MAX_SUMS", 2)
    with world.context():
        assert [sums.create("b"), sums.create("a"), sums.create("b")] == [True, True, False]
        with pytest.raises(sums.TooManySumsError):
            sums.create("c")
        assert sums.names() == ["a", "b"]


def test_whether_a_sum_exists_is_asked_once(world: World) -> None:
    """A process remembers the names it has seen: an insert costs no read for it."""
    with world.clients.context():
        assert not sums.exists(world.clients, "a")
        sums.create("a")
        assert sums.exists(world.clients, "a")
        before = world.clients.meter.cost()
        assert all(sums.exists(world.clients, "a") for _ in range(10))

        assert (world.clients.meter.cost() - before).round_trips == 0


def test_a_form_counts_once_and_so_does_its_tally(world: World) -> None:
    """Sent twice, or by five at once: one item, one tally, and both sides are equal."""

    def send(amount: int = 7) -> bool:
        with world.clients.context():
            return sums.add_once(world.clients, "s", LOAD, amount)

    results: list[bool] = []
    in_threads(*[lambda: results.append(send()) for _ in range(5)])
    assert not send(8)
    world.settle()

    assert any(results)
    assert both_sides(world) == (Count(1, 7), Count(1, 7), 0)


def test_a_form_whose_commit_lost_its_reply_counts_once(world: World) -> None:
    """The second attempt finds its own row, and says that it was added."""
    with world.clients.context(), world.plan.watched():
        sums.add_once(world.clients, "other", LOAD, 1)
        calls = list(world.plan.calls)
        # The same calls once more, and now the commit's reply is lost.
        world.plan.calls.clear()
        world.plan.kind, world.plan.at = REPLY_LOST, calls.index("Commit")
        assert sums.add_once(world.clients, "s", LOAD, 7)
    assert "Commit" in world.plan.fired
    world.heal(lambda: reconciliation.status("s").waiting == 0)

    assert both_sides(world) == (Count(1, 7), Count(1, 7), 0)


def test_forms_are_deleted_after_two_days(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Growth is bounded: those that come delete those before; until then each counts once."""
    monkeypatch.setattr(sums, "PARTITIONS", "ab")
    monkeypatch.setattr(sums, "expiry", lambda spread, at: f"{spread[0]}{at:%Y%m%dT%H}")
    forms = [f"{i % 2 + 10:x}{i:031x}" for i in range(30)]
    with world.clients.context():
        for form in forms:
            assert sums.add_once(world.clients, "s", form, 1)
    world.clock.sleep(47 * 3600)
    with world.clients.context():
        assert not any(sums.add_once(world.clients, "s", form, 1) for form in forms)
    world.clock.sleep(2 * 3600)
    with world.clients.context():
        for i in range(12):
            sums.add_once(world.clients, "s", f"a{i:030x}f", 1)
    with world.context():
        left = [key.id() for key in SumAddition.query().fetch(keys_only=True)]

    assert len(left) == 12
