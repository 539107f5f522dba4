"""Fork-join queues: what goes in is folded once, in batches."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from pydantic import Field

from models.dead_tasks import DeadTask, open_dead_tasks
from models.fork_join import (
    PARTITIONS,
    PackId,
    WorkPack,
    WorkReceipt,
    left_of,
    packs_tagged,
    packs_tagged_under,
    receipt_key,
)
from models.transactions import NoTransactionError, transact
from pipelines.fork_join import fold as fork_join_folds
from pipelines.fork_join import insert as fork_join_inserts
from pipelines.fork_join import sweep as fork_join_sweeps
from pipelines.fork_join import transactional as fork_join_stays
from pipelines.fork_join.epochs import CLOSED, Epochs, OpenEpoch, Slot, close, look
from pipelines.fork_join.fold import MAX_FAILURES, MAX_FAILURES_OF_ALL
from pipelines.fork_join.insert import insert_group
from pipelines.fork_join.queue import (
    BadItemError,
    DifferentItemError,
    ForkJoin,
    ItemStatus,
    Join,
    OutcomeUnknownError,
)
from pipelines.fork_join.sweep import Forget, forget, sweep_all
from pipelines.runtime.cache import NoCache
from pipelines.tasks.errors import Retry, Unavailable
from tests.pipelines.tallies import (
    AT_ONCE,
    SHARDED,
    TALLIES,
    Mark,
    MarkTally,
    batches,
    packs,
    tallied,
    tally,
    tally_world,
)
from tests.world import Services, World, in_threads


@pytest.fixture
def world(services: Services) -> World:
    return tally_world(services)


def put(world: World, key: str, *labels: str, queue: Any = TALLIES, **options: Any) -> Any:
    with world.clients.context():
        return [queue.insert(world.clients, key, Mark(label), **options) for label in labels]


def tasks(world: World) -> Any:
    return world.live_tasks("fork-join")


def test_a_period_of_items_is_folded_together(world: World) -> None:
    """D1, D5: everything accepted is folded once, by one task, and nothing is left."""
    put(world, "t", "a", "b", "c")
    assert len(tasks(world)) == 1
    world.deliver_due()
    with world.context():
        assert tallied("t") == Counter()

    world.settle()

    with world.context():
        assert tallied("t") == Counter("abc")
        assert batches("t") == [3]
        assert packs() == []


def test_keys_have_batches_of_their_own(world: World) -> None:
    """D1: what is inserted for one key is folded for it alone."""
    put(world, "one", "a")
    put(world, "two", "b", "c")
    world.settle()

    with world.context():
        assert (tallied("one"), tallied("two")) == (Counter("a"), Counter("bc"))


def test_without_a_period_an_item_is_folded_at_once(world: World) -> None:
    """Idle latency is near zero: neither the insert nor the task has anything to wait for."""
    before_s = world.clock.time_s
    put(world, "t", "a", queue=AT_ONCE)
    assert world.clock.time_s == before_s
    world.deliver_due()

    with world.context():
        assert tallied("t") == Counter("a")


def test_a_full_batch_does_not_wait_for_its_period(world: World) -> None:
    """Early fire: at 20 items the batch starts; its own task finds nothing left."""
    put(world, "t", *[f"i{i}" for i in range(25)])
    world.deliver_due()
    with world.context():
        assert batches("t") == [20]

    world.settle()

    with world.context():
        assert batches("t") == [20, 5]


def test_a_batch_larger_than_a_transaction_is_folded_in_several(world: World) -> None:
    """D1: 65 items under one epoch, 20 at a time."""
    with world.clients.context():
        TALLIES.insert_each(world.clients, [("t", Mark(f"i{i}")) for i in range(15)])
        for part in range(5):
            marks = [("t", Mark(f"p{part}.{i}")) for i in range(10)]
            TALLIES.insert_each(world.clients, marks)
    world.settle()

    with world.context():
        assert sum(batches("t")) == 65
        assert max(batches("t")) <= 20
        assert set(tallied("t").values()) == {1}


@pytest.mark.parametrize(("count", "folded", "status"), [(3, 3, 204), (4, 3, 429)])
def test_a_joiner_that_cannot_list_its_batch_comes_again(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int, folded: int, status: int
) -> None:
    """D1: of three packs a look; what is behind them comes with the next one, at once."""
    monkeypatch.setattr(fork_join_folds, "MAX_LISTED", 3)
    put(world, "t", *[f"i{i}" for i in range(count)])
    world.clock.sleep(1.1)

    assert world.deliver(tasks(world)[0].name) == status
    with world.context():
        assert batches("t") == [folded]
    world.settle()
    with world.context():
        assert sum(batches("t")) == count
        assert packs() == []


def test_no_join_gets_more_than_the_largest_batch(world: World) -> None:
    """One commit of 50 items, 20 at a time: each is told its place, and each is folded once."""
    labels = [f"i{i}" for i in range(50)]
    with world.clients.context():
        asked = [TALLIES._insertion("t", Mark(label), keep_result=True) for label in labels]
        accepted: list[Any] = insert_group(world.clients, TALLIES, asked)
    world.settle()

    with world.context():
        assert sorted(batches("t")) == [10, 20, 20]
        results = [TALLIES.outcome(each).result for each in accepted]
    assert [result.split()[0] for result in results] == labels


def test_an_insert_in_a_transaction_is_no_larger_than_a_batch(world: World) -> None:
    """It is one pack, and its fold takes it whole."""
    with world.clients.context(), pytest.raises(BadItemError, match="20 items"):
        transact(
            lambda: TALLIES.insert_in_transaction(
                world.clients, "t", *[Mark(f"i{i}") for i in range(21)]
            )
        )


def test_an_insert_in_a_transaction_has_at_most_so_many_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entity takes a MiB: what is as large as it may be goes in, and not a byte more."""
    monkeypatch.setattr(fork_join_stays, "MAX_GROUP_BYTES", len('[{"label":"abc"}]'))

    def insert(label: str) -> None:
        transact(lambda: TALLIES.insert_in_transaction(world.clients, "t", Mark(label)))

    with world.clients.context():
        insert("abc")
        with pytest.raises(BadItemError, match="18 bytes"):
            insert("abcd")


def test_a_packs_key_tells_its_size_in_kib(world: World) -> None:
    """So a fold is planned without reading packs; what is begun does not count."""

    def size_of(place: str) -> int:
        return PackId.parse(place).kilobytes

    mark, larger = Mark("x" * (2_047 - len('{"label":""}'))), Mark("x" * 2_048)
    with world.clients.context():
        places = [TALLIES.insert(world.clients, "t", each).pack for each in (mark, larger)]
        alone = transact(
            lambda: TALLIES.insert_in_transaction(
                world.clients, "t", Mark(mark.label.removesuffix("xx"))
            )
        )

    assert [size_of(place) for place in (*places, alone)] == [1, 2, 1]


def test_packs_are_put_together_up_to_what_a_transaction_takes(world: World) -> None:
    """Three packs of 15 under one epoch, 20 at a time: each is folded alone."""

    def body() -> None:
        for pack in "abc":
            marks = [Mark(f"{pack}{i}") for i in range(15)]
            TALLIES.insert_in_transaction(world.clients, "t", *marks)

    with world.clients.context():
        transact(body)
    world.settle()

    with world.context():
        assert batches("t") == [15, 15, 15]


def test_a_hot_key_may_have_several_batches_open(world: World) -> None:
    """D1: sharded epochs; each is folded, one after the other."""
    put(world, "t", *[f"i{i}" for i in range(30)], queue=SHARDED)
    assert len(tasks(world)) == 3
    world.settle()

    with world.context():
        assert sum(batches("t")) == 30
        assert len(batches("t")) == 3


def test_what_is_committed_together_goes_into_one_batch(world: World) -> None:
    """One entity a commit, whichever of a hot key's batches it lands in."""
    with world.clients.context():
        SHARDED.insert_each(world.clients, [("t", Mark(f"i{i}")) for i in range(30)])
    with world.context():
        assert len(packs()) == 1
    world.settle()

    with world.context():
        assert batches("t") == [30]


def test_inserts_of_one_process_share_commits(world: World) -> None:
    """Group commit: concurrent inserts are packed; each gets an answer of its own."""
    answers: list[Any] = []

    def insert(i: int) -> None:
        answers.extend(put(world, "t", f"i{i}", keep_result=True))

    in_threads(*[lambda i=i: insert(i) for i in range(24)])
    places = {(answer.pack, answer.position) for answer in answers}
    assert len(places) == 24
    world.settle()

    with world.context():
        assert tallied("t") == Counter(f"i{i}" for i in range(24))
        results = [TALLIES.outcome(answer).result for answer in answers]
    assert len(set(results)) == 24


LIMITS: list[tuple[str, Any, Any]] = [
    ("period_s", [0, 3_600], [-0.001, 3_600.001]),
    ("max_batch_size", [1, 10_000], [0, 10_001]),
    ("shards", [1, 100], [0, 101]),
    ("target_latency_s", [0.001, None], [0, -1]),
]


@pytest.mark.parametrize(("option", "good", "bad"), LIMITS)
def test_a_queue_that_cannot_be_is_refused(option: str, good: Any, bad: Any) -> None:
    """When it is declared; what is as much as it may be is taken."""

    def declare(name: str = "ok", **options: Any) -> ForkJoin[Mark]:
        return ForkJoin(name, Mark, tally, queue="fork-join", **{"period_s": 1.0, **options})

    for value in good:
        declare(**{option: value})
    for value in bad:
        with pytest.raises(ValueError, match=r"period|batch|latency"):
            declare(**{option: value})
    for name in ("", "x", "Upper", "1st", "a|b", "x" * 62):
        with pytest.raises(ValueError, match="name"):
            declare(name)
    assert declare("x" * 61).name == "x" * 61


# Request ids


def test_a_request_counts_once_however_often_it_is_made(world: World) -> None:
    """D1: before its batch is folded and after."""
    (first,) = put(world, "t", "a", idempotency_key="r1")
    (again,) = put(world, "t", "a", idempotency_key="r1")
    world.settle()
    (late,) = put(world, "t", "a", idempotency_key="r1")
    world.settle()

    assert not first.is_duplicate
    assert again.is_duplicate
    assert late.is_duplicate
    assert (again.pack, again.position) == (first.pack, first.position)
    with world.context():
        assert tallied("t") == Counter("a")


def test_a_request_id_belongs_to_one_item_of_one_key(world: World) -> None:
    """Used for another item it is an error; for another key it is another request."""
    put(world, "t", "a", idempotency_key="r1")
    with pytest.raises(DifferentItemError):
        put(world, "t", "b", idempotency_key="r1")
    put(world, "u", "b", idempotency_key="r1")
    world.settle()

    with world.context():
        assert (tallied("t"), tallied("u")) == (Counter("a"), Counter("b"))


@dataclass(frozen=True)
class Short:
    label: Annotated[str, Field(max_length=5)]


@dataclass(frozen=True)
class Labelled:
    label: str
    note: str = ""
    came_by: str = field(default="", compare=False)


def test_a_request_is_the_same_after_a_field_was_added(services: Services) -> None:
    """D1: a client tries again across a deployment; what it has sent is what it sent before."""
    options: dict[str, Any] = {"queue": "fork-join", "period_s": 1.0}
    before = ForkJoin("labels", Short, tally, **options)
    after = ForkJoin("labels", Labelled, tally, **options)
    world = World(services, fork_joins=[after])
    with world.clients.context():
        before.insert(world.clients, "t", Short("a"), idempotency_key="r")
        again = after.insert(world.clients, "t", Labelled("a", came_by="mail"), idempotency_key="r")
        back = before.insert(world.clients, "t", Short("a"), idempotency_key="r")
        with pytest.raises(DifferentItemError):
            after.insert(world.clients, "t", Labelled("a", note="more"), idempotency_key="r")
    world.settle()

    assert again.is_duplicate
    assert back.is_duplicate
    with world.context():
        assert tallied("t") == Counter("a")


def test_receipts_of_earlier_versions_are_good(world: World) -> None:
    """D1: their digest is of the whole item, defaults and all."""
    queue = ForkJoin("labels", Labelled, tally, queue="fork-join", period_s=1.0)
    (first,) = put(world, "t", "a", idempotency_key="other")
    with world.clients.context():
        whole = json.dumps({"label": "a", "note": "", "came_by": ""}, separators=(",", ":"))
        digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
        key = receipt_key("labels", "t", "r")
        WorkReceipt(key=key, pack=first.pack, position=0, digest=digest, expires="f2030").put()

        assert queue.insert(world.clients, "t", Labelled("a"), idempotency_key="r").is_duplicate


def test_the_same_request_at_the_same_moment_counts_once(world: World) -> None:
    """D1: also when both come into one commit, or into two that race."""
    answers: list[Any] = []
    in_threads(
        *[lambda: answers.extend(put(world, "t", "a", idempotency_key="r")) for _ in range(8)]
    )
    world.settle()

    assert [answer.is_duplicate for answer in answers].count(False) == 1
    with world.context():
        assert tallied("t") == Counter("a")


def forget_what_expired(world: World) -> None:
    """Let every partition forget, as the sweep would in time."""
    with world.clients.context():
        for partition in PARTITIONS:
            fork_join_sweeps.forget_all.work(world.clients, Forget(partition, "now"))


def test_receipts_are_forgotten_after_their_day(world: World) -> None:
    """Growth is bounded: not before 24 hours, and with the 26th."""
    hour = 3600
    began_s = world.clock.time_s
    put(world, "t", "a", idempotency_key="r1")
    world.settle()
    world.clock.sleep(began_s + 24 * hour - world.clock.time_s)
    forget_what_expired(world)
    assert left(world) == 1

    world.clock.sleep(2 * hour)
    forget_what_expired(world)
    assert left(world) == 0


def test_results_are_forgotten_after_their_hour(world: World) -> None:
    """Growth is bounded: not before an hour, and with the third."""
    hour = 3600
    (accepted,) = put(world, "t", "a", keep_result=True)
    world.settle()
    world.clock.sleep(hour)
    forget_what_expired(world)
    with world.context():
        assert TALLIES.outcome(accepted).result == "a is number 1"

    world.clock.sleep(2 * hour)
    forget_what_expired(world)
    with world.context():
        assert TALLIES.outcome(accepted) == ItemStatus(is_folded=True)


def receipts(world: World, count: int) -> None:
    """Write receipts that expired long ago."""
    with world.context():
        ndb.put_multi(
            [
                WorkReceipt(
                    id=f"{i % 16:x}{i}", pack="p", position=0, digest="d", expires=f"{i % 16:x}2020"
                )
                for i in range(count)
            ]
        )


def left(world: World) -> int:
    with world.context():
        return len(WorkReceipt.query().fetch(keys_only=True))


def test_receipts_are_forgotten_as_fast_as_they_are_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Growth is bounded: one sweep deletes all that has expired, however much; a task, a few."""
    monkeypatch.setattr(fork_join_sweeps, "MAX_FORGOTTEN", 3)
    monkeypatch.setattr(fork_join_sweeps, "PAGES_A_TASK", 2)
    receipts(world, 480)
    world.sweep()
    assert left(world) == 477
    world.deliver(world.live_tasks("default")[0].name)
    assert left(world) == 477 - 6
    world.settle()

    assert left(world) == 0


def test_what_forgets_does_not_pile_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep starts chains of so many tasks, and the next sweep goes on."""
    monkeypatch.setattr(fork_join_sweeps, "MAX_FORGOTTEN", 1)
    monkeypatch.setattr(fork_join_sweeps, "PAGES_A_TASK", 1)
    monkeypatch.setattr(fork_join_sweeps, "MAX_FORGETTING", 2)
    receipts(world, 160)
    world.sweep()
    world.settle()

    assert left(world) == 160 - 1 - 16 * 2


def test_forgetting_nothing_costs_two_queries(world: World) -> None:
    """An idle queue costs next to nothing."""
    with world.context():
        before = world.clients.meter.cost()
        assert forget(world.clients) == 0
        cost = world.clients.meter.cost() - before

    assert (cost.round_trips, cost.tasks) == (2, 0)


# Results


def test_who_asked_gets_the_joins_result(world: World) -> None:
    """A result an item, kept for an hour; who did not ask costs no write."""
    asked, other = put(world, "t", "a", keep_result=True), put(world, "t", "b")
    with world.context():
        assert not TALLIES.outcome(asked[0]).is_folded
    world.settle()

    with world.context():
        assert TALLIES.outcome(asked[0]).result.startswith("a is number")
        assert TALLIES.outcome(other[0]).is_folded
        assert TALLIES.outcome(other[0]).result is None


def test_waiting_for_a_result_ends(world: World) -> None:
    """Nobody waits longer than they said, nor for what is known."""
    (accepted,) = put(world, "t", "a", keep_result=True)
    before_s = world.clock.time_s
    with world.context():
        assert not TALLIES.wait(world.clients, accepted, timeout_s=0.5).is_folded
    assert 0.499 < world.clock.time_s - before_s < 0.55
    world.settle()
    before_s = world.clock.time_s
    with world.context():
        assert TALLIES.wait(world.clients, accepted, timeout_s=0.5).is_folded
    assert world.clock.time_s == before_s


# Failing joins


def test_a_poison_item_is_parked_and_the_rest_goes_through(world: World) -> None:
    """One item that the function cannot take stops nobody: found by halving, then parked."""
    put(world, "t", "a", "b", "bad", "c")
    with world.clients.context():
        TALLIES.insert_each(world.clients, [("t", Mark(m)) for m in ("d", "bad too", "e")])
    world.settle()

    with world.context():
        assert tallied("t") == Counter("abcde")
        assert packs() == []
        dead = DeadTask.query().fetch()
    assert sorted("bad too" in task.body for task in dead) == [False, True]
    assert all("no tally takes" in task.reason for task in dead)


def test_who_asked_is_told_that_an_item_was_parked(world: World) -> None:
    """It is not folded, and does not wait: the outcome says so."""
    bad, good = put(world, "t", "bad", "good", keep_result=True)
    with world.context():
        assert TALLIES.outcome(bad) == TALLIES.outcome(good)
    world.settle()

    with world.context():
        assert TALLIES.outcome(bad) == ItemStatus(is_folded=False, is_parked=True)
        before_s = world.clock.time_s
        assert TALLIES.wait(world.clients, bad, timeout_s=60).is_parked
        assert world.clock.time_s == before_s
        assert TALLIES.outcome(good).result == "good is number 1"


def test_each_of_a_pack_that_was_split_gets_its_own_result(world: World) -> None:
    """Three who asked share a pack, and one is poison: the last one's result is the last one's."""
    labels = ["good", "bad", "better"]
    with world.clients.context():
        asked = [TALLIES._insertion("t", Mark(label), keep_result=True) for label in labels]
        accepted: list[Any] = insert_group(world.clients, TALLIES, asked)
    assert len({each.pack for each in accepted}) == 1
    world.settle()

    with world.context():
        good, bad, better = (TALLIES.outcome(each) for each in accepted)
    assert good.result.startswith("good is number")
    assert bad.is_parked
    assert better.result.startswith("better is number")


def test_a_parked_item_can_be_replayed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: it goes in again, once, and is folded when the function takes it."""
    (accepted,) = put(world, "t", "bad", keep_result=True)
    world.settle()
    mended(monkeypatch)
    world.doubles = True
    replay(world)
    world.settle()

    with world.context():
        assert tallied("t") == Counter({"good": 1})
        assert TALLIES.outcome(accepted).result == "good is number 1"


def test_a_replay_that_fails_is_parked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a dead task of its own, and another chance."""
    (accepted,) = put(world, "t", "bad")
    world.settle()
    replay(world)
    world.settle()
    with world.context():
        assert TALLIES.outcome(accepted).is_parked
    mended(monkeypatch)
    replay(world)
    world.settle()

    with world.context():
        assert tallied("t") == Counter({"good": 1})
        assert open_dead_tasks().fetch() == []


def mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the join take what was bad."""

    def join(clients: Any, batch: Any, items: Any) -> Any:
        return AT_ONCE.join(clients, batch, [Mark(i.label.replace("bad", "good")) for i in items])

    monkeypatch.setattr(TALLIES, "join", join)


def replay(world: World) -> None:
    """Press the button beside the only dead task."""
    with world.context():
        (dead,) = open_dead_tasks().fetch()
        task = world.app.extensions["wiring"].registry.tasks["/tasks/dead/replay"]
        task.enqueue(world.clients, task.args(dead.key.id()))


def of_topic(world: World) -> list[tuple[str, str]]:
    """Return what is found under the tag: items, and when their batch was opened."""
    with world.context():
        found = [(pack.items, pack.key.id()) for pack in packs_tagged("tag").fetch()]
        assert [key.id() for key in packs_tagged_under("ta").fetch(keys_only=True)] == [
            key for _, key in found
        ]
    return [(items, PackId.parse(key).epoch) for items, key in found]


def test_what_is_parked_is_found_under_its_topic_until_it_is_folded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7: whoever asks what waits sees it all the while: waiting, parked, waiting again."""

    def body() -> str:
        return TALLIES.insert_in_transaction(world.clients, "t", Mark("bad"), tag="tag")

    with world.clients.context():
        pack = transact(body)
    waiting = of_topic(world)
    world.settle()
    assert of_topic(world) == waiting
    with world.context():
        assert [row.key.id() for row in left_of([pack])] == [PackId.parse(pack).parked.text]
    mended(monkeypatch)
    replay(world)
    world.deliver_due()
    assert len(of_topic(world)) <= 1
    world.settle()

    assert of_topic(world) == []
    with world.context():
        assert left_of([pack]) == []
        assert tallied("t") == Counter({"good": 1})


def test_what_is_left_of_a_pack_is_found_when_it_was_split(world: World) -> None:
    """D7: by the key that its writer was told: whole, in parts, parked."""

    def body() -> str:
        marks = [Mark("a"), Mark("bad"), Mark("b"), Mark("bad too")]
        return TALLIES.insert_in_transaction(world.clients, "t", *marks)

    with world.clients.context():
        pack = transact(body)
        assert [row.key.id() for row in left_of([pack])] == [pack]
    world.settle()

    with world.context():
        left = [json.loads(row.items) for row in left_of([pack])]
    assert sorted(left, key=str) == [[{"label": "bad too"}], [{"label": "bad"}]]


def test_a_replay_counts_once_however_late_it_comes_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: a second delivery of it two days later, when every receipt is gone."""
    put(world, "t", "bad")
    world.settle()
    mended(monkeypatch)
    replay(world)
    with world.context():
        (dead,) = DeadTask.query().fetch()
    world.settle()
    world.clock.sleep(48 * 3600)
    left = True
    while left:
        world.sweep()
        with world.context():
            left = bool(WorkReceipt.query().fetch(1, keys_only=True))
    with world.clients.context():
        task = world.app.extensions["wiring"].registry.tasks[dead.path]
        task.work(world.clients, task.read(dead.body.encode()))
    world.settle()

    with world.context():
        assert tallied("t") == Counter({"good": 1})


def test_a_dead_task_of_an_earlier_version_can_be_replayed(world: World) -> None:
    """Its item is in its body alone; delivered twice it counts once."""
    task = TALLIES.insert_task
    body = b'{"key":"t","item":"{\\"label\\":\\"a\\"}","parked":"epoch.pack","tag":null}'
    with world.clients.context():
        for _ in range(2):
            task.work(world.clients, task.read(body))
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


def test_a_join_that_fails_for_everything_keeps_its_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in the function parks nothing at once: the batch waits for the next deployment."""

    def broken(clients: Any, batch: Any, items: Any) -> None:
        raise RuntimeError("deployed on a Friday")

    with monkeypatch.context() as patch:
        patch.setattr(TALLIES, "join", broken)
        put(world, "t", *[f"i{i}" for i in range(19)])
        world.clock.sleep(1.1)
        for _ in range(MAX_FAILURES - 2):
            world.deliver(tasks(world)[0].name)
        with world.context():
            assert DeadTask.query().fetch() == []
    world.settle()

    with world.context():
        assert tallied("t") == Counter(f"i{i}" for i in range(19))


@pytest.mark.parametrize(("good", "deliveries"), [(3, MAX_FAILURES), (0, MAX_FAILURES_OF_ALL)])
def test_an_item_is_tried_a_stated_number_of_times(
    world: World, good: int, deliveries: int
) -> None:
    """Five when others of its batch went through; twenty when it may be the function's fault."""
    put(world, "t", "bad", *[f"i{i}" for i in range(good)])
    for delivery in range(1, deliveries + 1):
        with world.context():
            assert DeadTask.query().fetch() == [], f"parked at delivery {delivery - 1}"
        world.clock.sleep(120)
        world.deliver(tasks(world)[0].name)

    with world.context():
        assert len(DeadTask.query().fetch()) == 1
        assert packs() == []


@pytest.mark.parametrize(
    "error",
    [
        Retry("made by a test"),
        Unavailable("made by a test"),
        rpc_errors.Aborted("made by a test"),
        rpc_errors.Cancelled("made by a test"),
        rpc_errors.DataLoss("made by a test"),
        rpc_errors.DeadlineExceeded("made by a test"),
        rpc_errors.InternalServerError("made by a test"),
        rpc_errors.ResourceExhausted("made by a test"),
        rpc_errors.RetryError("made by a test", None),
        rpc_errors.ServiceUnavailable("made by a test"),
        rpc_errors.Unknown("made by a test"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_an_outage_is_not_an_items_fault(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """D3: each code by its name: nothing is halved, counted or parked."""

    def away(*args: Any) -> Any:
        raise error

    put(world, "t", "a", "b")
    monkeypatch.setattr(fork_join_folds, "MAX_FAILURES_OF_ALL", 1)
    with monkeypatch.context() as patch:
        patch.setattr(fork_join_folds, "_fold_here", away)
        for _ in range(2):
            world.clock.sleep(120)
            assert world.deliver(tasks(world)[0].name) != 200
        with world.context():
            assert DeadTask.query().fetch() == []
            assert len(packs()) == 2
    world.settle()

    with world.context():
        assert tallied("t") == Counter("ab")


@dataclass(frozen=True)
class Long:
    label: Annotated[str, Field(max_length=50)]


def versions() -> tuple[ForkJoin[Any], ForkJoin[Any]]:
    """Return a queue in this version of the code and in the next."""
    options: dict[str, Any] = {"queue": "fork-join", "period_s": 1.0}
    return ForkJoin("labels", Short, tally, **options), ForkJoin("labels", Long, tally, **options)


def test_an_item_of_the_next_version_waits_for_it(services: Services) -> None:
    """D3: while two versions serve it holds nobody up, and is not at fault."""
    this, following = versions()
    world = World(services, fork_joins=[this])
    with world.clients.context():
        this.insert(world.clients, "t", Short("a"))
        accepted = following.insert(world.clients, "t", Long("rather long"))
        this.insert(world.clients, "t", Short("b"))
    for _ in range(25):
        world.clock.sleep(100)
        world.deliver(tasks(world)[0].name)
    with world.context():
        assert tallied("t") == Counter("ab")
        assert DeadTask.query().fetch() == []
    with world.clients.context():
        task = following.join_task
        task.work(world.clients, Join("t", PackId.parse(accepted.pack).epoch))

    with world.context():
        assert tallied("t") == Counter(["a", "b", "rather long"])
        assert batches("t") == [2, 1]


def test_an_item_that_no_version_can_read_is_parked_after_an_hour(services: Services) -> None:
    """D3: then nobody deploys any more."""
    this, following = versions()
    world = World(services, fork_joins=[this])
    with world.clients.context():
        following.insert(world.clients, "t", Long("rather long"))
    world.clock.sleep(3_500)
    world.deliver(tasks(world)[0].name)
    with world.context():
        assert not packs()[0].failures
    world.settle(rounds=100)

    with world.context():
        assert packs() == []
        assert len(DeadTask.query().fetch()) == 1


@pytest.mark.parametrize("bad", [9, 25])
def test_many_poison_items_are_parked_and_hold_nothing_up(world: World, bad: int) -> None:
    """D3: more of them than one joiner looks at; the others go through, wherever they stand."""
    labels = [f"bad {i}" for i in range(bad)] + [f"good {i}" for i in range(30)]
    with world.clients.context():
        for label in labels:
            TALLIES.insert_each(world.clients, [("t", Mark(label))])
    world.settle(rounds=200)

    with world.context():
        assert tallied("t") == Counter(f"good {i}" for i in range(30))
        assert packs() == []
        assert len(DeadTask.query().fetch()) == bad


@pytest.mark.parametrize("character", ["庭", '"', "\\", "\x01", "é"])
def test_whatever_is_accepted_can_be_parked(world: World, character: str) -> None:
    """D3: an item as large as it may be, of characters that grow on their way."""
    size = len(json.dumps(character, ensure_ascii=False).encode()) - 2
    label = "bad" + character * ((40_000 - 20) // size)
    put(world, "t" * 1_200, label)
    world.settle()

    with world.context():
        assert packs() == []
        (dead,) = DeadTask.query().fetch()
        assert TALLIES.replay_task.read(dead.body.encode()).key == "t" * 1_200


def test_many_large_items_are_committed_in_parts(world: World) -> None:
    """An entity takes a MiB, a commit ten: what is too much for one goes with the next."""
    marks = [("t", Mark(f"{i}" + "庭" * 13_000)) for i in range(40)]
    with world.clients.context():
        answers = TALLIES.insert_each(world.clients, marks)
        assert not any(isinstance(answer, Exception) for answer in answers)
        assert len(packs()) > 1


def test_each_of_many_is_told_whether_it_is_bad(world: World) -> None:
    """One that cannot be inserted takes no other with it."""
    marks = [("t", Mark("a")), ("", Mark("b")), ("t", Mark("\ud800")), ("t", Mark("c"))]
    with world.clients.context():
        answers = TALLIES.insert_each(world.clients, marks)
    assert [isinstance(answer, BadItemError) for answer in answers] == [False, True, True, False]
    world.settle()

    with world.context():
        assert tallied("t") == Counter("ac")


# memcached


class Hooked(NoCache):
    """memcached, with something done right after a batch is closed."""

    def __init__(self, cache: Any, on_close: Callable[[], Any]) -> None:
        self.cache = cache
        self.on_close = on_close

    def __getattribute__(self, name: str) -> Any:
        if name in ("cache", "on_close", "incr_existing"):
            return object.__getattribute__(self, name)
        return getattr(self.cache, name)

    def incr_existing(self, key: str, delta: int) -> int | None:
        count: int | None = self.cache.incr_existing(key, delta)
        if delta == -CLOSED:
            self.on_close()
            count = self.cache.incr_existing(key, 0)
        return count


def test_a_writer_that_is_refused_holds_no_joiner_up(world: World) -> None:
    """It steps back out of a batch that closes: the joiner waits for nobody."""
    clients, slot = world.clients, Slot(TALLIES.name, "t")
    entry = TALLIES.epochs(clients).enter(clients, slot, 1)
    TALLIES.epochs(clients).leave(clients, entry)
    others: list[Any] = []
    cache = Hooked(
        clients.cache,
        lambda: others.append(TALLIES.epochs(clients).enter(clients, slot, 1)),
    )
    object.__setattr__(clients, "cache", cache)
    before = world.clock.time_s

    assert close(clients, slot, entry.epoch)

    assert world.clock.time_s == before
    assert others[0].epoch != entry.epoch


def test_one_who_looks_on_sees_what_is_announced_and_who_is_inside(world: World) -> None:
    """Of the batch that is open; of one that is closed, nothing."""
    clients, slot = world.clients, Slot(TALLIES.name, "t")
    epochs = TALLIES.epochs(clients)
    entries = [epochs.enter(clients, slot, items) for items in (3, 2)]
    epoch = entries[0].epoch
    assert look(clients, slot) == OpenEpoch(epoch, items=5, writers=2)
    for entry in entries:
        epochs.leave(clients, entry)
    assert look(clients, slot) == OpenEpoch(epoch, items=5, writers=0)
    close(clients, slot, epoch)

    assert look(clients, slot) is None
    clients.cache.set(slot.name, epoch.encode(), 60)
    assert look(clients, slot) is None


class Beaten(NoCache):
    """memcached, with something done right before the first epoch is published."""

    def __init__(self, cache: Any, slot: Slot, first: Callable[[], Any]) -> None:
        self.cache = cache
        self.slot = slot
        self.first: Callable[[], Any] | None = first

    def __getattribute__(self, name: str) -> Any:
        if name in ("cache", "slot", "first", "add"):
            return object.__getattribute__(self, name)
        return getattr(self.cache, name)

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        if key == self.slot.name and (first := self.first):
            self.first = None
            first()
        is_added: bool = self.cache.add(key, value, ttl_s)
        return is_added


def test_of_two_who_open_a_batch_at_once_one_joins_the_other(world: World) -> None:
    """One batch, and one task for it."""
    clients, slot = world.clients, Slot(TALLIES.name, "t")
    others: list[Any] = []
    elsewhere = Epochs(1.0, TALLIES._shape)
    cache = Beaten(clients.cache, slot, lambda: others.append(elsewhere.enter(clients, slot, 1)))
    object.__setattr__(clients, "cache", cache)

    mine = TALLIES.epochs(clients).enter(clients, slot, 1)

    (other,) = others
    assert (mine.epoch, mine.is_new) == (other.epoch, False)
    assert other.is_new


def test_a_batch_of_another_key_is_not_taken_for_ones_own(world: World) -> None:
    """memcached holds an epoch that is open, and of somebody else."""
    put(world, "other", "a")
    with world.context():
        (other,) = packs()
    epoch = PackId.parse(other.key.id()).epoch
    world.clients.cache.set(Slot(TALLIES.name, "t").name, epoch.encode(), 60)
    put(world, "t", "b")

    with world.context():
        epochs = {pack.batch_key: PackId.parse(pack.key.id()).epoch for pack in packs()}
    assert epochs["other"] == epoch
    assert epochs["t"] != epoch


def test_without_memcached_each_process_makes_its_own_batches(world: World) -> None:
    """D2: smaller batches, the same totals."""
    object.__setattr__(world.clients, "cache", NoCache())
    put(world, "t", "a", "b", "c")
    world.clients.process_state.clear()  # Another process.
    put(world, "t", "d")
    assert len(tasks(world)) == 2
    world.settle()

    with world.context():
        assert tallied("t") == Counter("abcd")
        assert sorted(batches("t")) == [1, 3]


class Liar(NoCache):
    """A memcached that says yes to everything and knows what nobody told it."""

    def __init__(self, told: bytes) -> None:
        self.told = told

    def get(self, key: str) -> bytes | None:
        return self.told

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        return True

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        return True

    def delete(self, key: str) -> bool:
        return True

    def incr_existing(self, key: str, delta: int) -> int | None:
        return int(self.told[:30]) if self.told.isdigit() else 2**16 + 5


LIES = [
    b"",
    b"\xff\x00",
    b"0",
    b"65536",
    b"65537",
    b"32768",
    b"99999999999999999999",
    b"9" * 5_000,
    b"c0ffee012345.20300501T120000000000.1a2b3c4d",
    b"c0ffee012345.00000501T120000000000.1a2b3c4d",
]


@pytest.mark.parametrize("told", LIES)
def test_whatever_memcached_says_the_totals_are_exact(world: World, told: bytes) -> None:
    """D2, D3: nonsense, numbers, epochs of others: only batches differ."""
    object.__setattr__(world.clients, "cache", Liar(told))
    put(world, "t", "a", "b", "c")
    world.heal(lambda: not packs(), rounds=3)

    with world.context():
        assert tallied("t") == Counter("abc")


def test_a_batch_whose_task_is_lost_is_woken_by_the_sweep(world: World) -> None:
    """D3: within its period and one sweep."""
    put(world, "t", "a", "b")
    world.engine.reset()
    world.heal(lambda: not packs(), rounds=2)

    with world.context():
        assert tallied("t") == Counter("ab")


def test_many_stranded_batches_are_woken_by_walks(world: World, monkeypatch: Any) -> None:
    """D3: partition by partition, page by page, each its own task."""
    monkeypatch.setattr("pipelines.fork_join.sweep.MAX_HERE", 7)
    for i in range(60):
        put(world, f"t{i}", "a")
    world.engine.reset()
    world.clock.sleep(60)
    world.sweep()
    assert 16 >= len([t for t in tasks(world) if t.http_request.url.endswith("/walk")]) > 10
    world.settle()

    with world.context():
        assert packs() == []
        assert all(tallied(f"t{i}") == Counter("a") for i in range(60))


@pytest.mark.parametrize("minutes", [13, 25, 45, 90, 24 * 60])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_was_stranded_while_nobody_swept_is_woken_by_the_next_sweep(
    world: World, minutes: int, is_first: bool
) -> None:
    """D3: within one sweep, however long there was none, whether or not there ever was one."""
    if not is_first:
        world.sweep()
    put(world, "t", "a")
    world.engine.reset()
    world.clock.sleep(minutes * 60)
    world.sweep()
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


def test_many_stranded_batches_are_woken_after_a_day_without_sweeps(
    world: World, monkeypatch: Any
) -> None:
    """D3: walks know when the last round was, too."""
    monkeypatch.setattr("pipelines.fork_join.sweep.MAX_HERE", 3)
    for i in range(8):
        put(world, f"t{i}", "a")
    world.engine.reset()
    world.clock.sleep(24 * 3600)
    world.sweep()
    world.settle()

    with world.context():
        assert packs() == []


def test_one_that_was_just_stranded_is_woken_by_who_cannot_wait(world: World) -> None:
    """A worker that starts looks for what its predecessor left, at any age it likes."""
    put(world, "t", "a")
    world.engine.reset()
    world.clock.sleep(3)
    with world.context():
        assert TALLIES.sweep(world.clients).woken == 0
        assert TALLIES.sweep(world.clients, stale_s=1).woken == 1
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


@pytest.mark.parametrize("bad", ["no pack", "0.no.epoch|1|0|x", "|1|0|x", "0|x|0|x"])
def test_what_is_no_pack_stops_no_sweep(world: World, bad: str) -> None:
    """D3: whoever stands behind it is woken."""
    put(world, "t", "a")
    world.engine.reset()
    with world.context():
        WorkPack(id=f"{TALLIES.name}|{bad}", batch_key="t", items="[]").put()
    world.clock.sleep(60)
    world.sweep()
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


def test_a_queue_that_cannot_be_swept_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: and what fails is told all the same."""

    def broken(*args: Any, **rest: Any) -> None:
        raise RuntimeError("made by a test")

    put(world, "t", "a", queue=AT_ONCE)
    world.engine.reset()
    world.clock.sleep(60)
    monkeypatch.setattr(TALLIES, "wake", broken)
    put(world, "t", "b")
    world.engine.reset()
    world.clock.sleep(60)
    with world.context(), pytest.raises(RuntimeError, match="made by a test"):
        sweep_all(world.clients, [TALLIES, AT_ONCE])
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


def test_a_sweep_reads_no_packs(world: World) -> None:
    """Whose batch it is stands in the pack, of up to a MiB: its joiner reads that."""
    put(world, "t", "a")
    put(world, "u", "b")
    world.engine.reset()
    world.clock.sleep(60)
    with world.context():
        before = world.clients.meter.cost()
        assert TALLIES.sweep(world.clients).woken == 2
        cost = world.clients.meter.cost() - before

    assert (cost.reads, cost.writes, cost.tasks) == (0, 0, 2)


# Refusals


def test_what_cannot_be_inserted_is_refused(world: World) -> None:
    """Bad input is told, and changes nothing."""
    with pytest.raises(BadItemError, match="bytes"):
        put(world, "", "a")
    with pytest.raises(BadItemError, match="bytes"):
        put(world, "k" * 1_201, "a")
    with pytest.raises(BadItemError, match="at most"):
        put(world, "t", "a" * 40_001)
    with pytest.raises(BadItemError, match="no item"):
        put(world, "t", 7)  # type: ignore[arg-type]
    with pytest.raises(BadItemError, match="idempotency key"):
        put(world, "t", "a", idempotency_key="")
    with pytest.raises(BadItemError, match="idempotency key"):
        put(world, "t", "a", idempotency_key="r" * 201)
    with pytest.raises(BadItemError, match="half a character"):
        put(world, "\ud800", "a")
    with world.context():
        assert packs() == []
    put(world, "t", "a", idempotency_key="r" * 200)


def test_an_insert_that_datastore_does_not_take_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: nothing counts later unless the caller comes again with the same id."""

    def away(*args: Any) -> None:
        raise rpc_errors.ServiceUnavailable("made by a test")

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.fork_join.insert.insert_all", away)
        with pytest.raises(OutcomeUnknownError):
            put(world, "t", "a")
        with pytest.raises(OutcomeUnknownError):
            put(world, "t", "b", idempotency_key="r")
    world.settle()
    with world.context():
        assert tallied("t") == Counter()
    put(world, "t", "b", idempotency_key="r")
    world.settle()

    with world.context():
        assert tallied("t") == Counter("b")


def aborted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first commit lose its race."""
    sound, errors = fork_join_inserts.insert_all, [rpc_errors.Aborted("made by a test")]

    def insert_all(client: Any, entities: Any) -> None:
        if errors:
            raise errors.pop()
        sound(client, entities)

    monkeypatch.setattr(fork_join_inserts, "insert_all", insert_all)


def test_a_commit_that_lost_its_race_leaves_its_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5: no writer is inside when the insert is over."""
    aborted_once(monkeypatch)
    put(world, "t", "a")

    batch = look(world.clients, Slot(TALLIES.name, "t"))
    assert batch is not None
    assert batch.writers == 0


def test_a_batch_of_ones_own_has_a_joiner_after_a_lost_race(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: without memcached the second commit goes where the first would have; no sweep needed."""
    object.__setattr__(world.clients, "cache", NoCache())
    aborted_once(monkeypatch)
    put(world, "t", "a")
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


def test_an_insert_whose_every_look_fails_says_that_it_is_not_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: the commit's reply is lost, then each look for it: `OutcomeUnknownError`, no other."""
    sound = fork_join_inserts.insert_all

    def lost(client: Any, entities: Any) -> None:
        sound(client, entities)
        raise rpc_errors.DeadlineExceeded("made by a test")

    def away(keys: Any) -> Any:
        raise rpc_errors.DeadlineExceeded("made by a test")

    with monkeypatch.context() as patch:
        patch.setattr(fork_join_inserts, "insert_all", lost)
        patch.setattr(fork_join_inserts.ndb, "get_multi", away)
        with pytest.raises(OutcomeUnknownError):
            put(world, "t", "a", idempotency_key="r")
    (again,) = put(world, "t", "a", idempotency_key="r")
    world.settle()

    assert again.is_duplicate
    with world.context():
        assert tallied("t") == Counter("a")


@pytest.mark.parametrize("idempotency_key", [None, "r"])
def test_a_commit_that_is_sent_twice_finds_itself(
    world: World, monkeypatch: pytest.MonkeyPatch, idempotency_key: str | None
) -> None:
    """D1: what is there already is its own, so it took effect, and is not made again."""
    sound, calls = fork_join_inserts.insert_all, list[int]()

    def twice(client: Any, entities: Any) -> None:
        calls.append(len(entities))
        sound(client, entities)
        sound(client, entities)

    monkeypatch.setattr(fork_join_inserts, "insert_all", twice)
    (accepted,) = put(world, "t", "a", idempotency_key=idempotency_key)
    world.settle()

    assert not accepted.is_duplicate
    assert len(calls) == 1
    with world.context():
        assert tallied("t") == Counter("a")


def test_a_request_that_was_made_before_costs_one_commit_and_one_look(world: World) -> None:
    """Its receipt refuses the commit, and tells why."""
    put(world, "t", "a", idempotency_key="r")
    with world.context(), world.plan.watched():
        assert TALLIES.insert(world.clients, "t", Mark("a"), idempotency_key="r").is_duplicate

    assert [call for call in world.plan.calls if "cache" not in call] == ["Commit", "Lookup"]


@pytest.mark.parametrize("idempotency_key", [None, "r"])
def test_a_commit_that_lands_late_is_folded_without_a_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch, idempotency_key: str | None
) -> None:
    """D3: its writer was told that nobody knows, its joiner has been; it is folded in seconds."""
    sound = fork_join_inserts.insert_all
    late: list[Any] = []

    def unheard(client: Any, entities: Any) -> None:
        late.append(entities)
        raise rpc_errors.DeadlineExceeded("made by a test")

    with monkeypatch.context() as patch:
        patch.setattr(fork_join_inserts, "insert_all", unheard)
        with pytest.raises(OutcomeUnknownError):
            put(world, "t", "a", idempotency_key=idempotency_key)
    before = world.clock.time_s
    world.clock.sleep(2)
    world.deliver_due()
    with world.context():
        sound(world.clients.datastore, late[0])
    world.settle()

    assert world.clock.time_s - before < 5
    with world.context():
        assert tallied("t") == Counter("a")


def test_a_commit_in_doubt_that_turned_out_costs_no_second_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second try, which is guarded by its receipt, was accepted: the first never lands."""
    sound, errors = fork_join_inserts.insert_all, [rpc_errors.Unknown("made by a test")]

    def fails_once(client: Any, entities: Any) -> None:
        if errors:
            raise errors.pop()
        sound(client, entities)

    monkeypatch.setattr(fork_join_inserts, "insert_all", fails_once)
    put(world, "t", "a", idempotency_key="r")

    assert len(tasks(world)) == 1


def test_a_joiner_that_cloud_tasks_did_not_take_is_created_by_the_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: it was away for a moment; no sweep is needed."""
    sound, answers = world.clients.tasks.create_each, [rpc_errors.ServiceUnavailable("away")]

    def away_once(messages: Any) -> Any:
        return [answers.pop() for _ in messages] if answers else sound(messages)

    monkeypatch.setattr(world.clients.tasks, "create_each", away_once)
    put(world, "t", "a")
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


# In a transaction


def test_an_insert_in_a_transaction_is_committed_with_it(world: World) -> None:
    """D1: with the data, or not at all; and no task is created before its work can be read."""

    def body() -> None:
        MarkTally(id="source", labels=["x"]).put()
        before = len(tasks(world))
        TALLIES.insert_in_transaction(world.clients, "t", Mark("a"))
        assert len(tasks(world)) == before

    def broken() -> None:
        body()
        raise ValueError("changed my mind")

    with world.clients.context():
        with pytest.raises(ValueError, match="changed"):
            transact(broken)
        assert packs() == []
        transact(body)
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")
        assert packs() == []


def test_two_equal_items_of_one_transaction_are_two(world: World) -> None:
    """D1: also when the body runs again."""
    tries: list[int] = []

    def body() -> None:
        tries.append(1)
        for _ in range(2):
            TALLIES.insert_in_transaction(world.clients, "t", Mark("a"))
        if len(tries) == 1:
            raise rpc_errors.Aborted("made by a test")

    with world.clients.context():
        transact(body, sleep=lambda seconds: None)
    world.settle()

    with world.context():
        assert tallied("t") == Counter("aa")


def test_a_body_that_runs_again_inserts_once(world: World) -> None:
    """D1: every try writes the same packs, whatever became of the one before."""
    tries: list[int] = []

    def body() -> None:
        tries.append(1)
        TALLIES.insert_in_transaction(world.clients, "t", Mark("a"))
        TALLIES.insert_in_transaction(world.clients, "t", Mark("b"))
        if len(tries) < 3:
            raise rpc_errors.Aborted("made by a test")

    with world.clients.context():
        transact(body, sleep=lambda seconds: None)
    world.settle()

    with world.context():
        assert tallied("t") == Counter("ab")


def test_a_transaction_that_fails_holds_no_batch_up(world: World) -> None:
    """D5: its stay in the epoch ends with it, and what others put there is folded in time."""

    def broken() -> None:
        TALLIES.insert_in_transaction(world.clients, "t", Mark("a"))
        raise ValueError("changed my mind")

    with world.clients.context(), pytest.raises(ValueError, match="changed"):
        transact(broken)
    put(world, "t", "b")
    before = world.clock.time_s
    world.settle()

    assert world.clock.time_s - before < 1.1
    with world.context():
        assert tallied("t") == Counter("b")


def test_a_transaction_in_doubt_that_lands_late_is_folded_without_a_sweep(world: World) -> None:
    """D3: its caller got the error, its joiner has been; the pack is folded in seconds."""
    put: list[str] = []

    def unheard() -> None:
        put.append(TALLIES.insert_in_transaction(world.clients, "t", Mark("a")))
        raise rpc_errors.Cancelled("made by a test")

    with world.clients.context(), pytest.raises(rpc_errors.Cancelled):
        transact(unheard, sleep=lambda seconds: None)
    before = world.clock.time_s
    world.clock.sleep(2)
    world.deliver_due()
    with world.context():
        WorkPack(id=put[0], batch_key="t", items='[{"label":"a"}]').put()
    world.settle()

    assert len(set(put)) == 1
    assert world.clock.time_s - before < 5
    with world.context():
        assert tallied("t") == Counter("a")


def test_outside_of_a_transaction_it_is_an_error(world: World) -> None:
    """Said at once, not found out later."""
    with world.clients.context(), pytest.raises(NoTransactionError):
        TALLIES.insert_in_transaction(world.clients, "t", Mark("a"))


class Forgetful(NoCache):
    """memcached that answers some and stays silent to others."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.is_silent = False

    def get(self, key: str) -> bytes | None:
        return None if self.is_silent else self.cache.get(key)

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        return not self.is_silent and self.cache.set(key, value, ttl_s)

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        return not self.is_silent and self.cache.add(key, value, ttl_s)

    def delete(self, key: str) -> bool:
        return not self.is_silent and self.cache.delete(key)

    def incr_existing(self, key: str, delta: int) -> int | None:
        return None if self.is_silent else self.cache.incr_existing(key, delta)


def test_a_joiner_that_could_not_close_its_batch_comes_again(world: World) -> None:
    """D3: writers that still think it open are folded seconds later, before any sweep."""
    cache = Forgetful(world.clients.cache)
    object.__setattr__(world.clients, "cache", cache)
    put(world, "t", "a")
    world.clock.sleep(1.1)
    cache.is_silent = True
    world.deliver(tasks(world)[0].name)
    cache.is_silent = False
    put(world, "t", "b")
    with world.context():
        assert [PackId.parse(pack.key.id()).items for pack in packs()] == [1]
    world.settle()

    with world.context():
        assert tallied("t") == Counter("ab")
        assert packs() == []
