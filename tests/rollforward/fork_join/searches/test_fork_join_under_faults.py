"""Fork-join queues with a fault at every remote call, and deliveries in every disorder."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.fork_join import Batch, ForkJoin, OutcomeUnknownError, fork_join
from rollforward.fork_join import fold as fork_join_fold
from rollforward.fork_join import insert as fork_join_insert
from rollforward.fork_join import sweep as fork_join_sweep
from rollforward.fork_join.batching.packs import StoredPack
from rollforward.fork_join.entities import PackId, WorkPack, pack_key
from rollforward.fork_join.joiners import Join
from rollforward.fork_join.sweep import SweepResult
from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import Message
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import Reject
from rollforward.testing.explorer import NO_SWEEPS
from rollforward.testing.injection import CRASH_AFTER, ERROR, FLUSH, KINDS, OVERLAP, REPLY_LOST
from tests.infra.faults.explorer import ALL, IS_EXHAUSTIVE, Explorer
from tests.infra.world import Services, World
from tests.rollforward.fork_join.tally_queue import (
    AT_ONCE,
    SHARDED,
    TALLIES,
    Mark,
    all_packs,
    packs,
    tallied,
    tally,
    tally_world,
)

LABELS = ["a", "b", "c", "d"]
# A process that lives on looks again by itself, and one that starts looks for what another left.
SWEEPS: dict[str, int] = {}


class InTurn(random.Random):
    """Each shard in its turn, and ids of their own in the same order, so that plays are alike."""

    def __init__(self, play: int) -> None:
        super().__init__(1)
        self._play = play
        self._turns = itertools.count()

    def randrange(self, start: int, *bounds: Any) -> int:  # type: ignore[override]
        return next(self._turns) % start

    def getrandbits(self, k: int, /) -> int:
        bits = super().getrandbits(k)
        return bits ^ (self._play << 80) if k == 128 else bits


class InsertScenario:
    """Two processes insert items, each with an idempotency key, and try again when refused."""

    def __init__(self, world: World, queue: ForkJoin[Mark]) -> None:
        self.world = world
        self.queue = queue
        self.plays = itertools.count(1)

    def begin(self, tag: str) -> None:
        clients = self.world.clients
        object.__setattr__(clients, "random", InTurn(next(self.plays)))
        for label in LABELS:
            self.insert(tag, label)
            if label == "b":
                clients.process_state.clear()  # From here on it is another process.
        self.insert(tag, "a")  # Somebody presses twice.

    def insert(self, tag: str, label: str) -> None:
        try:
            self.queue.insert(self.world.clients, tag, Mark(label), idempotency_key=label)
        except OutcomeUnknownError as error:
            raise rpc_errors.ServiceUnavailable("the visitor sees a 503") from error

    def is_done(self, tag: str) -> bool:
        return not packs()

    def check(self, tag: str, fault: str) -> None:
        assert tallied(tag) == Counter(LABELS), fault


class BadItemScenario(InsertScenario):
    """One of the items cannot be folded."""

    leaves: tuple[str, ...] = ("'DeadTask'", "'parked:")

    def begin(self, tag: str) -> None:
        super().begin(tag)
        self.insert(tag, "bad")

    def check(self, tag: str, fault: str) -> None:
        super().check(tag, fault)
        parked = [row.items for row in WorkPack.query() if row.batch_key == tag]
        assert parked == ['[{"label":"bad"}]'], fault


@pytest.fixture(params=[TALLIES, AT_ONCE, SHARDED], ids=lambda queue: queue.name)
def scenario(request: pytest.FixtureRequest, services: Services) -> InsertScenario:
    return InsertScenario(tally_world(services), request.param)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_each_item_is_folded_once_with_a_fault_at_any_call(
    scenario: InsertScenario, kind: str
) -> None:
    """D1, D2, D3, D4, D5: a fault or a flushed memcached at each call, of writers and joiners."""
    assert Explorer(scenario.world, scenario, SWEEPS).explore([kind])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", [REPLY_LOST, ERROR, CRASH_AFTER])
def test_each_item_is_folded_once_with_two_faults_at_once(services: Services, first: str) -> None:
    """D1, D2, D3: the second fault at any later call, of any kind, with an item that fails.

    One fault shows how the emulators differ; `make soak` plays pairs on both.
    """
    if services.datastore_kind == "firestore" and not IS_EXHAUSTIVE:
        pytest.skip("pairs of faults on one emulator; on both in `make soak`")
    scenario = BadItemScenario(tally_world(services), TALLIES)

    assert Explorer(scenario.world, scenario, SWEEPS).explore_pairs([first], [*KINDS, FLUSH])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [REPLY_LOST, CRASH_AFTER])
@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_an_item_that_fails_is_parked_once_with_a_fault_at_any_call(
    services: Services, kind: str
) -> None:
    """D1, D7: and the others of its batch are folded once."""
    scenario = BadItemScenario(tally_world(services), TALLIES)

    assert Explorer(scenario.world, scenario, SWEEPS).explore([kind])


def test_each_item_is_folded_once_when_deliveries_overlap_at_any_call(
    scenario: InsertScenario,
) -> None:
    """D1, D4: a second delivery runs from start to end inside the first, at each of its calls."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario, NO_SWEEPS).explore([OVERLAP])


@pytest.mark.parametrize("seed", range(3))
def test_each_item_is_folded_once_in_any_order(scenario: InsertScenario, seed: int) -> None:
    """D1: every task delivered twice, in a shuffled order."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(seed)
    Explorer(scenario.world, scenario, NO_SWEEPS).play()


def test_each_item_is_folded_once_with_all_deliveries_side_by_side(
    scenario: InsertScenario,
) -> None:
    """D1, D4: all tasks that are due run at once, each of them twice, on threads."""
    scenario.world.overlaps = True
    for _ in range(3):
        Explorer(scenario.world, scenario, NO_SWEEPS).play()


class UnguardedScenario(InsertScenario):
    """The same without idempotency keys: what raised may count, or not, and never twice."""

    def __init__(self, world: World, queue: ForkJoin[Mark]) -> None:
        super().__init__(world, queue)
        self.accepted: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()

    def begin(self, tag: str) -> None:
        for label in LABELS:
            labels = (f"{tag}{label}",)
            if self.accepted[labels[0]] or self.unknown[labels[0]]:
                continue  # The visitor does not try again: it might count twice.
            self.unknown.update(labels)
            self.queue.insert(self.world.clients, tag, Mark(label))
            self.unknown.subtract(labels)
            self.accepted.update(labels)

    def check(self, tag: str, fault: str) -> None:
        for label, times in tallied(tag).items():
            assert times == 1, f"{label} twice: {fault}"
        for label in LABELS:
            if self.accepted[f"{tag}{label}"]:
                assert tallied(tag)[label] == 1, f"{label} is lost: {fault}"


class ReplayScenario:
    """An item is parked, its join is mended, and it is replayed, again if refused."""

    def __init__(self, services: Services) -> None:
        self.queue = fork_join("picky", queue="fork-join", period_s=1.0)(self.join)
        self.world = World(services, fork_joins=[self.queue])
        self.bad: set[str] = set()
        self.dead: dict[str, str] = {}

    def join(self, clients: Clients, batch: Batch, items: Sequence[Mark]) -> None:
        if batch.key in self.bad:
            raise Reject("it will be mended")
        tally(clients, batch, items)

    def begin(self, tag: str) -> None:
        if tag not in self.dead:
            with self.world.plan.unwatched():
                self.park(tag)
        self.world.clients.tasks.create(
            Message(
                "/tasks/dead/replay", "default", f'{{"dead_task_id":"{self.dead[tag]}"}}'.encode()
            )
        )

    def park(self, tag: str) -> None:
        self.bad.add(tag)
        accepted = self.queue.insert(self.world.clients, tag, Mark("a"))
        epoch = PackId.parse(accepted.pack).epoch
        self.queue.join_task.work(self.world.clients, Join(tag, epoch))
        (dead,) = open_dead_tasks().fetch()
        self.dead[tag] = dead.key.id()
        self.bad.remove(tag)

    def is_done(self, tag: str) -> bool:
        return not all_packs()

    def check(self, tag: str, fault: str) -> None:
        assert tallied(tag) == Counter("a"), fault


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("doubles", [False, True])
def test_a_replay_counts_once_with_a_fault_at_any_call(
    services: Services, kind: str, doubles: bool
) -> None:
    """D1, D7: what was parked is folded once, also with every delivery doubled."""
    scenario = ReplayScenario(services)
    scenario.world.doubles = doubles

    assert Explorer(scenario.world, scenario, NO_SWEEPS).explore([kind])


@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_without_an_idempotency_key_an_item_counts_at_most_once(
    services: Services, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: acknowledged means folded once; refused means once or never."""
    world = tally_world(services)
    scenario = UnguardedScenario(world, TALLIES)
    begin = scenario.begin

    def begin_or_be_refused(tag: str) -> None:
        try:
            begin(tag)
        except OutcomeUnknownError as error:
            raise rpc_errors.ServiceUnavailable("the visitor sees a 503") from error

    monkeypatch.setattr(scenario, "begin", begin_or_be_refused)
    Explorer(world, scenario, NO_SWEEPS).explore([kind])


def test_a_lost_reply_is_found_out(services: Services) -> None:
    """D6: the pack proves that it was committed; no caller has to retry."""
    world = tally_world(services)
    plan = world.plan
    with world.clients.context():
        commit = _calls_until_commit(world)
        plan.calls, plan.kind, plan.at = [], REPLY_LOST, commit
        with plan.watched():
            TALLIES.insert(world.clients, "t", Mark("a"))
    assert "Commit" in plan.fired
    world.settle()

    with world.context():
        assert tallied("t")["a"] == 1


def _calls_until_commit(world: World) -> int:
    with world.plan.watched():
        TALLIES.insert(world.clients, "other", Mark("x"))
    return world.plan.calls.index("Commit")


# Planted bugs


def _deleted_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fold in one transaction, delete in another: as the talk's code does."""
    sound = fork_join_fold._fold_here

    def fold(clients: Any, queue: Any, part: Sequence[Any]) -> int:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(StoredPack, "delete", lambda pack: None)
            return sound(clients, queue, part)

    sound_fold = fork_join_fold._fold

    def fold_part(clients: Any, queue: Any, part: Sequence[Any], folded: Any) -> None:
        sound_fold(clients, queue, part, folded)
        ndb.delete_multi([pack_key(pack.text) for pack in part])

    monkeypatch.setattr(fork_join_fold, "_fold_here", fold)
    monkeypatch.setattr(fork_join_fold, "_fold", fold_part)


def _never_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_join_sweep, "sweep", lambda clients, queue, **options: SweepResult())


def _no_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = fork_join_insert.insert_rows

    def insert_rows(client: Any, rows: Sequence[Any]) -> None:
        sound(client, [row for row in rows if row.model is WorkPack])

    monkeypatch.setattr(fork_join_insert, "insert_rows", insert_rows)


# Each with the kinds of fault that show it.
PLANTED = [
    (_deleted_outside, [CRASH_AFTER]),
    (_never_swept, KINDS),
    (_no_receipts, KINDS),
]


@pytest.mark.parametrize(("plant", "kinds"), PLANTED)
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    kinds: Sequence[str],
) -> None:
    """With one of its proofs taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    scenario = InsertScenario(tally_world(services), TALLIES)
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario, NO_SWEEPS).explore(kinds, at_most=ALL)
