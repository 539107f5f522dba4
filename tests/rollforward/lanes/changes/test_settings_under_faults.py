"""Lanes whose settings differ from delivery to delivery, with a fault at any remote call.

So it is while versions of an app are side by side: one adds tasks, another one claims them, and a
third one finds out what became of a claim.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rollforward.lanes import Lane, Rate
from rollforward.lanes.declaration import LaneKey
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import state_key, waiting
from rollforward.lanes.runs import claims, ends
from rollforward.lanes.runs.delivery import deliver
from rollforward.runtime import Clients
from rollforward.tasks.errors import Retry
from rollforward.testing.injection import CRASH_AFTER, CRASH_BEFORE, ERROR, FLUSH, KINDS, REPLY_LOST
from tests.infra.faults.explorer import ALL, IS_EXHAUSTIVE, Explorer
from tests.infra.world import Services, World
from tests.rollforward.lanes.office import DESK, write
from tests.rollforward.lanes.test_lanes_under_faults import MOST_SWEEPS, TEXTS, Letters

NAME = "test-changing"
ORDERED = (
    Lane(NAME, order=True),
    Lane(NAME, order=True, weight=4),
    Lane(NAME, order=True, rate=Rate(50, burst=2)),
    Lane(NAME, order=True, on_dead="block"),
)
MIXED = (
    Lane(NAME, order=True),
    Lane(NAME, limit=2),
    Lane(NAME),
    Lane(NAME, rate=Rate(50, burst=2)),
    Lane(NAME, limit=5, weight=10),
)


@dataclass
class ChangingLetters(Letters):
    """Letters that one version adds, and others deliver, in turns; one letter waits twice."""

    versions: Sequence[Lane] = ()
    turns: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)

    def version(self, lane_id: str) -> Lane:
        """Return the version that has the next turn at a key."""
        self.turns[lane_id] += 1
        return self.versions[(self.turns[lane_id] - 1) % len(self.versions)]

    def key(self, tag: str) -> LaneKey:
        return self.version(f"added {tag}")(tag)

    def fail(self, name: str) -> None:
        super().fail(name)
        if name.endswith(":1") and self.waits[name] < 1:
            self.waits[name] += 1
            raise Retry("later still", after_s=5)

    def is_done(self, tag: str) -> bool:
        """Return whether all is done; with a rate a state is kept for a day."""
        lane_id = self.lane(tag).id
        state = state_key(lane_id).get()
        is_idle = state is None or (not state.claims and state.head is None)
        return set(DESK.of(tag)) == set(TEXTS) and not waiting(lane_id).fetch(1) and is_idle


def played(versions: Sequence[Lane], services: Services) -> ChangingLetters:
    DESK.__init__()  # type: ignore[misc]

    def turn(clients: Clients, args: LaneArgs) -> None:
        deliver(letters.version(args.lane_id), clients, args)

    lane = Lane(NAME, order=all(version.order for version in versions))
    lane.task = replace(lane.task, work=turn)
    # What a version adds is delivered by the task that the app declares.
    for version in versions:
        version.task = lane.task
    letters = ChangingLetters(World(services, lanes=[lane], tasks=[write]), lane, versions=versions)
    return letters


@pytest.fixture(params=[ORDERED, MIXED], ids=["ordered", "mixed"])
def letters(request: pytest.FixtureRequest, services: Services) -> ChangingLetters:
    return played(request.param, services)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_each_task_runs_while_settings_change_with_a_fault_at_any_call(
    letters: ChangingLetters, kind: str
) -> None:
    """K1, K2, K3, K5, K11: once unless its worker died, in order if all versions have one."""
    assert Explorer(letters.world, letters, MOST_SWEEPS).explore([kind])


@pytest.mark.parametrize("seed", range(2))
def test_each_task_runs_while_settings_change_in_any_order(
    letters: ChangingLetters, seed: int
) -> None:
    """K1, K3, K11: every hint delivered twice, in a shuffled order, and side by side."""
    letters.world.doubles = seed == 0
    letters.world.overlaps = seed == 1
    letters.world.order = random.Random(seed)
    Explorer(letters.world, letters, MOST_SWEEPS).play()


@pytest.mark.skipif(not IS_EXHAUSTIVE, reason="pairs are played by `make soak`")
def test_each_task_runs_while_settings_change_with_two_faults(letters: ChangingLetters) -> None:
    """K1, K3, K11: two remote calls break."""
    firsts, seconds = [REPLY_LOST, CRASH_AFTER], [REPLY_LOST, ERROR, CRASH_BEFORE]
    Explorer(letters.world, letters, MOST_SWEEPS).explore_pairs(firsts, seconds)


def _keeps_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version without an order leaves the task that another one had to keep first."""
    sound = claims.Holder._release

    def release(self: claims.Holder, *args: Any) -> Any:
        declared, self.lane = self.lane, Lane(NAME, order=True)
        try:
            return sound(self, *args)
        finally:
            self.lane = declared

    monkeypatch.setattr(claims.Holder, "_release", release)


def _moves_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version puts tasks that wait behind all others, although the lane has an order."""
    sound = ends.reschedule

    def reschedule(holder: claims.Holder, *args: Any) -> Any:
        declared, holder.lane = holder.lane, Lane(NAME)
        try:
            return sound(holder, *args)
        finally:
            holder.lane = declared

    monkeypatch.setattr(ends, "reschedule", reschedule)


@pytest.mark.parametrize(
    ("versions", "plant"),
    [(MIXED, _keeps_the_first_one), (ORDERED, _moves_the_first_one)],
    ids=["keeps", "moves"],
)
def test_the_faults_bite_while_settings_change(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    versions: Sequence[Lane],
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """With one of its guards taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    letters = played(versions, services)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        Explorer(letters.world, letters, MOST_SWEEPS).explore([ERROR], ALL, named="Commit")
