"""The outbox with a fault at every remote call: committed is delivered, the rest never is."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.datastore.transactions import Transaction, transact
from rollforward.outbox import BackgroundRelay
from rollforward.outbox import relay as relays
from rollforward.outbox.enqueue import _Outbound
from rollforward.outbox.entities import PARTITIONS, OutboxTask
from rollforward.outbox.relay import RelayResult, row_id
from rollforward.outbox.sweep import SweepResult, sweep
from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import Message
from rollforward.testing.injection import ERROR, FLUSH, KINDS, OVERLAP, REPLY_LOST
from rollforward.testing.world import in_threads
from tests.infra.faults.explorer import ALL, IS_EXHAUSTIVE, Explorer
from tests.infra.world import Services, World
from tests.rollforward.outbox.order_tasks import (
    STEPS,
    TASKS,
    Order,
    place,
    ran_here,
    rows_here,
    waiting,
)
from tests.rollforward.outbox.rows import SWEEP, enqueue, sent, steps_sent, strand

MAX_SWEEPS = 2


@dataclass
class OrderScenario:
    """Place an order with its tasks in one transaction, and let them run.

    A body that looks finds its order when it runs again, and enqueues nothing; one that does
    not look writes the same once more.
    """

    world: World
    looks: bool
    looked: Counter[str] = field(default_factory=Counter)

    def begin(self, tag: str) -> None:
        with self.world.plan.unwatched():
            if Order.get_by_id(tag) is not None:
                return  # The visitor sees it on the page, and does not press again.

        def body() -> None:
            if not self.looks or Order.get_by_id(tag) is None:
                place(self.world.clients, tag)

        transact(body)

    def is_done(self, tag: str) -> bool:
        self.looked[tag] += 1
        return not rows_here() and set(ran_here(tag)) == set(STEPS)

    def check(self, tag: str, fault: str) -> None:
        assert ran_here(tag) == Counter(STEPS), fault
        assert self.looked[tag] <= MAX_SWEEPS + 1, f"{fault}: healed too late"


@pytest.fixture(params=[True, False], ids=["looks", "blind"])
def scenario(request: pytest.FixtureRequest, services: Services) -> OrderScenario:
    return OrderScenario(World(services, tasks=TASKS), request.param)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_each_task_exists_once_with_a_fault_at_any_call(scenario: OrderScenario, kind: str) -> None:
    """B1, B3, B5, B6: a fault or a flushed cache at each call; healed within two sweeps."""
    assert Explorer(scenario.world, scenario).explore([kind])


class WaitedFor(BackgroundRelay):
    """The relay of a process that the test waits for, and whose seconds pass at once."""

    def __init__(self) -> None:
        super().__init__(pause=lambda seconds: None, schedule=lambda seconds, act: act())
        self._thread = Inline()  # type: ignore[assignment]


class Inline:
    """An executor that runs each call on another thread, to its end."""

    def submit(self, work: Callable[..., None], *args: Any) -> None:
        in_threads(lambda: work(*args))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [ERROR, REPLY_LOST])
def test_a_process_that_lives_on_needs_no_sweep(scenario: OrderScenario, kind: str) -> None:
    """B5: after any failed or unanswered call the relay recovers."""
    scenario.world.clients = replace(scenario.world.clients, relay=WaitedFor())

    assert Explorer(scenario.world, scenario, most_sweeps={}).explore([kind])


def test_each_task_exists_once_when_deliveries_overlap_at_any_call(
    scenario: OrderScenario,
) -> None:
    """B1: a second delivery runs from start to end inside the first, at each of its calls."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario).explore([OVERLAP])


@pytest.mark.parametrize("seed", range(3))
def test_each_task_exists_once_in_any_order(scenario: OrderScenario, seed: int) -> None:
    """B1: every task delivered twice, in a shuffled order."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(seed)
    Explorer(scenario.world, scenario).play()


MANY = 5_000 if IS_EXHAUSTIVE else 600


@pytest.mark.timeout(300)
def test_stranded_rows_are_drained_while_orders_come_in(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1, B5: after an outage each of them gets its task, once, and new ones do not wait."""
    monkeypatch.setattr(SWEEP, "MAX_PER_DRAIN", MANY // 50)  # Walks hand over to a next task.
    strand(world, MANY)
    world.clock.sleep(60)
    with world.context():
        handed_over = sweep(world.clients).partitions
        partitions = {row.key.id()[0] for row in rows_here()}
    assert handed_over == len(partitions) >= len(PARTITIONS) - 4

    walks = 0
    queue = world.engine.place.queue_name("outbox")
    while due := world.engine.due(queue):
        walks += 1
        with world.context():
            enqueue(world.clients, f"new{walks}", order=f"new{walks}")
            assert f"new{walks}" in {args["what"] for args in sent(world)[-1:]}
        assert world.deliver(due[0].task_name) == 204

    assert walks > 2 * len(partitions)
    expected = [f"s{i}" for i in range(MANY)] + [f"new{i + 1}" for i in range(walks)]
    assert steps_sent(world) == sorted(expected)
    assert waiting(world) == []


def _deleted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = relays.relay

    def relay(clients: Clients, rows: Sequence[OutboxTask]) -> RelayResult:
        ndb.delete_multi([row.key for row in rows if not row_id(row.key).is_unacked])
        return sound(clients, rows)

    for module in (relays, SWEEP):
        monkeypatch.setattr(module, "relay", relay)


def _keys_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = _Outbound.put

    def put(self: Any, make: Callable[[str], Message], **options: Any) -> str:
        self.transaction = Transaction()
        return sound(self, make, **options)

    monkeypatch.setattr(_Outbound, "put", put)


def _created_in_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = _Outbound.put

    def put(self: Any, make: Callable[[str], Message], **options: Any) -> str:
        row = sound(self, make, **options)
        self.clients.tasks.create(relays._message(self.clients, self.rows[-1], self.created))
        return row

    monkeypatch.setattr(_Outbound, "put", put)


def _never_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rollforward.outbox.pattern.sweep", lambda clients, **options: SweepResult()
    )


def _names_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "_task_name", lambda row, at: row.name or secrets.token_hex(20))


@pytest.mark.parametrize(
    "plant",
    [
        _deleted_first,
        _keys_of_the_moment,
        _created_in_the_body,
        _never_swept,
        _names_of_the_moment,
    ],
)
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """With one of its proofs taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    scenario = OrderScenario(World(services, tasks=TASKS), looks=False)
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario).explore(at_most=ALL)
