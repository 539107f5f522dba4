"""Lanes with a fault at any remote call: each task runs, in its order, and nothing is left."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollforward import outbox
from rollforward.datastore import transact
from rollforward.lanes import Lane, adding, hints
from rollforward.lanes.declaration import LaneKey
from rollforward.lanes.rows.entities import LaneTask, state_key, waiting
from rollforward.lanes.runs import claims, delivery, ends, lookups
from rollforward.outbox.cancellable import enqueue_cancellable
from rollforward.tasks.errors import Retry
from rollforward.tasks.stored import deliveries
from rollforward.tasks.stored.entities import ArgumentsChunk, CancellableTask, StoredArguments
from rollforward.testing.injection import (
    CRASH_AFTER,
    CRASH_BEFORE,
    ERROR,
    FLUSH,
    KINDS,
    OVERLAP,
    REPLY_LOST,
)
from tests.infra.faults.explorer import ALL, IS_EXHAUSTIVE, Explorer
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import Services, World
from tests.rollforward.lanes.office import DESK, IN_ORDER, TWO, write

# A hint that was lost is found by the sweep, once its task is late by half a minute; the claim of a
# dead worker by the one after it.
MOST_SWEEPS = dict.fromkeys((*KINDS, OVERLAP, FLUSH), 2)
TEXTS = ["0", "1", "2", "3", "4"]


@dataclass
class Letters:
    """Letters that are added alone, together and by a transaction; two of them fail once."""

    world: World
    lane: Lane
    begins: Counter[str] = field(default_factory=Counter)
    failed: set[str] = field(default_factory=set)

    def begin(self, tag: str) -> None:
        self.begins[tag] += 1
        DESK.before = self.fail
        clients = self.world.clients
        write.enqueue(clients, write.bind(tag, "0"), lane=self.key(tag))
        many = [write.bind(tag, text) for text in ("1", "2")]
        write.enqueue_many(clients, many, lane=self.key(tag))
        key = self.key(tag)

        def body() -> None:
            for text in ("3", "4"):
                outbox.enqueue(clients, write, write.bind(tag, text), lane=key)

        transact(body)

    def key(self, tag: str) -> LaneKey:
        return self.lane(tag)

    def fail(self, name: str) -> None:
        """Let one task wait, and one fail."""
        text = name.partition(":")[2]
        if text in ("1", "3") and name not in self.failed:
            self.failed.add(name)
            raise Retry("later", after_s=5) if text == "1" else ValueError("broken")

    def is_done(self, tag: str) -> bool:
        lane_id = self.lane(tag).id
        is_clean = not waiting(lane_id).fetch(1) and state_key(lane_id).get() is None
        return set(DESK.of(tag)) == set(TEXTS) and is_clean

    def check(self, tag: str, fault: str) -> None:
        written = DESK.of(tag)
        if self.lane.order:
            assert list(dict.fromkeys(written)) == TEXTS, f"{fault}: {written}"
        has_crashed = "crash" in fault or OVERLAP in fault
        if not has_crashed and self.begins[tag] == 1:
            assert sorted(written) == TEXTS, f"{fault}: {written}"


@dataclass
class Parcels:
    """A large task that can be cancelled: it has rows beside its place in the lane."""

    world: World
    lane: Lane = IN_ORDER

    def begin(self, tag: str) -> None:
        for text in ("0", "1"):
            call = write.bind(tag, text * 120_000)
            enqueue_cancellable(self.world.clients, write, call, lane=self.lane(tag))

    def is_done(self, tag: str) -> bool:
        lane_id = self.lane(tag).id
        is_clean = not waiting(lane_id).fetch(1) and state_key(lane_id).get() is None
        return is_clean and {text[0] for text in DESK.of(tag)} == {"0", "1"}

    def check(self, tag: str, fault: str) -> None:
        """Whenever a worker dies, a row that nobody refers to goes, now or by its time."""
        assert ArgumentsChunk.query().fetch(1, keys_only=True) == [], fault
        assert CancellableTask.query().fetch(1, keys_only=True) == [], fault
        assert all(row.expires for row in StoredArguments.query().fetch()), fault


def test_a_task_with_more_rows_leaves_none_with_a_fault_at_any_call(services: Services) -> None:
    """K10: its rows and its place go by one commit."""
    DESK.__init__()  # type: ignore[misc]
    world = World(services, lanes=[IN_ORDER], tasks=[write])
    Explorer(world, Parcels(world), MOST_SWEEPS).explore([CRASH_AFTER, REPLY_LOST])


@one_emulator
def test_a_place_that_is_deleted_before_the_other_rows_is_missed(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two commits in the place of one, the same exploration fails."""

    def finish_in_two(clients: Any, task: LaneTask, **options: Any) -> None:
        task.key.delete()
        deliveries.finish(clients, task.body.encode())

    monkeypatch.setattr(ends, "_finish_all", finish_in_two)
    DESK.__init__()  # type: ignore[misc]
    world = World(services, lanes=[IN_ORDER], tasks=[write])
    with pytest.raises(AssertionError):
        Explorer(world, Parcels(world), MOST_SWEEPS).explore([CRASH_AFTER], ALL)


@pytest.fixture(params=[IN_ORDER, TWO], ids=lambda lane: lane.name)
def letters(request: pytest.FixtureRequest, services: Services) -> Letters:
    return played(request.param, services)


def played(lane: Lane, services: Services) -> Letters:
    DESK.__init__()  # type: ignore[misc]
    return Letters(World(services, lanes=[IN_ORDER, TWO], tasks=[write]), lane)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_each_task_runs_with_a_fault_at_any_call(letters: Letters, kind: str) -> None:
    """K1, K2, K3, K5, K10: at least once, in order, and not again unless its worker died."""
    assert Explorer(letters.world, letters, MOST_SWEEPS).explore([kind])


def test_each_task_runs_when_deliveries_overlap_at_any_call(letters: Letters) -> None:
    """K1, K3, K10: a second delivery runs from start to end inside the first."""
    if letters.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(letters.world, letters, MOST_SWEEPS).explore([OVERLAP], at_most=4)


@pytest.mark.parametrize("seed", range(2))
def test_each_task_runs_in_any_order(letters: Letters, seed: int) -> None:
    """K1, K3, K10: every hint delivered twice, in a shuffled order, and side by side."""
    letters.world.doubles = seed == 0
    letters.world.overlaps = seed == 1
    letters.world.order = random.Random(seed)
    Explorer(letters.world, letters, MOST_SWEEPS).play()


@pytest.mark.skipif(not IS_EXHAUSTIVE, reason="pairs are played by `make soak`")
def test_each_task_runs_with_two_faults(letters: Letters) -> None:
    """K1, K3, K10: two remote calls break."""
    firsts, seconds = [REPLY_LOST, CRASH_AFTER], [REPLY_LOST, ERROR, CRASH_BEFORE]
    Explorer(letters.world, letters, MOST_SWEEPS).explore_pairs(firsts, seconds)


# Planted bugs


def _loses_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits for its time is passed by the others of its order."""
    monkeypatch.setattr(claims, "waits_until", lambda task, now_utc: None)
    sound = lookups.next_tasks

    def next_tasks(*args: Any) -> list[LaneTask]:
        return sorted(sound(*args), key=lambda task: task.failures + task.waits)

    monkeypatch.setattr(lookups, "next_tasks", next_tasks)


def _looks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery that gives its claim back does not look for tasks that came meanwhile."""
    monkeypatch.setattr(delivery, "has_due_task", lambda *args: False)
    monkeypatch.setattr(lookups, "MAX_TASKS", 1)
    monkeypatch.setattr(hints, "hint", lambda *args: None)


def _adds_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt of a transaction has rows of its own, though one before may be committed."""
    sound = adding._Adding.on_retry

    def on_retry(self: adding._Adding, cause: Exception) -> None:
        sound(self, cause)
        self.transaction.id = self.clients.new_id()

    monkeypatch.setattr(adding._Adding, "on_retry", on_retry)


def _deletes_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is done stays if the first deletion fails, and nobody remembers that it is."""
    monkeypatch.setattr(ends, "DELETE_ATTEMPTS", 1)

    def delete_done(turn: Any) -> None:
        done, turn._done = turn._done, []
        ends.finish(turn._holder, *done)

    monkeypatch.setattr(delivery._ClaimedRun, "_delete_done", delete_done)


Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: Sequence[tuple[Lane, Plant, Sequence[str], str]] = (
    (IN_ORDER, _loses_the_head, [ERROR], "Commit"),
    (IN_ORDER, _looks_no_more, [ERROR], "Commit"),
    (TWO, _adds_again, [REPLY_LOST], "Commit"),
    (IN_ORDER, _deletes_no_task, [REPLY_LOST, ERROR], "Commit"),
)


@pytest.mark.parametrize(
    ("lane", "plant", "faults", "named"),
    PLANTED,
    ids=[plant.__name__ for _, plant, _, _ in PLANTED],
)
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    lane: Lane,
    plant: Plant,
    faults: Sequence[str],
    named: str,
) -> None:
    """With one of its guards taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    letters = played(lane, services)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        Explorer(letters.world, letters, MOST_SWEEPS).explore(faults, ALL, named=named)
