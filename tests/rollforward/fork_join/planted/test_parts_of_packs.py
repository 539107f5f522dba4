"""Packs that fail, move and are found again, and their joiners, without a store; planted bugs."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.fork_join import fold, parked, sweep
from rollforward.fork_join.batching.epochs import ITEM, OPEN, Admission, Epochs, Shape, Slot, _lock
from rollforward.fork_join.entities import PackId, WorkPack, outcome_key, pack_key
from rollforward.fork_join.items import Insertion
from rollforward.fork_join.joiners import Joiners
from rollforward.fork_join.sweep import Drain
from rollforward.fork_join.transactional import TransactionalInserts
from rollforward.runtime.sweeps.sweep_round import SweepRound
from rollforward.tasks.errors import Reject
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  As Datastore's times are.
EPOCH = "c0ffee012345.20300501T120000000000.1a2b3c4d"
PERIOD_S = 10.0


class Cache:
    """Counters of memcached."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.get = lambda name: None

    def incr_existing(self, name: str, delta: int) -> int | None:
        if name not in self.counts:
            return None
        self.counts[name] += delta
        return self.counts[name]


class Machine:
    """The clients of a process, some seconds after noon."""

    def __init__(self, at_s: float = 0.0) -> None:
        at = (NOON + datetime.timedelta(seconds=at_s)).replace(tzinfo=datetime.UTC)
        self.clock = SimpleNamespace(now=lambda: at)
        self.new_id = lambda: "d1"
        self.cache = Cache()


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with offline(), Memory():
        for module in (fold, parked):
            monkeypatch.setattr(module, "transact", lambda body: body())
        monkeypatch.setattr(parked.dead_tasks, "dead_letter_in_transaction", lambda *a, **o: None)
        yield


def pack_of(items: int = 1, id_: str = "a") -> PackId:
    return PackId("tallies", EPOCH, items, 0, id_)


def put_pack(pack: PackId, **values: Any) -> None:
    items = json.dumps([f"item {number}" for number in range(pack.items)])
    given = {"tag": "red", "keep_result": True, "traceparents": "00-1", **values}
    Memory.current.put(WorkPack(key=pack_key(pack.text), batch_key="t", items=items, **given))


def stored(pack: PackId) -> tuple[str, list[str], str, bool, str, int] | None:
    row = Memory.current.get(pack_key(pack.text))
    if row is None:
        return None
    told = (row.tag, row.keep_result, row.traceparents, row.failures)
    return (row.batch_key, json.loads(row.items), *told)


REPLAY: Any = SimpleNamespace(
    path="/p", queue="q", message=lambda replay: SimpleNamespace(body=b"{}")
)
FOLDING: Any = SimpleNamespace(replay_task=REPLAY)


# Failures


@pytest.mark.parametrize(
    ("failures", "fails_alone", "is_alone", "error", "is_parked"),
    [
        (3, False, True, KeyError(), False),
        (4, False, True, KeyError(), True),
        (4, False, False, KeyError(), False),
        (4, True, False, KeyError(), True),
        (18, False, False, KeyError(), False),
        (19, False, False, KeyError(), True),
        (0, False, False, Reject("no"), True),
    ],
)
def test_an_item_is_parked_the_sooner_if_it_ever_failed_beside_others_that_went_through(
    failures: int, fails_alone: bool, is_alone: bool, error: Exception, is_parked: bool
) -> None:
    """D1: and keeps its tag, and whether its caller waits for a result."""
    machine: Any = Machine()
    pack, beside = pack_of(), pack_of(id_="b")
    for each in (pack, beside):
        put_pack(each, failures=failures, fails_alone=fails_alone)
    assert fold._count_failure(machine, FOLDING, pack, error, is_alone=is_alone) is is_parked
    same = ("t", ["item 0"], "red", True, "00-1")
    assert stored(pack) == (None if is_parked else (*same, failures + 1))
    assert stored(pack.parked) == ((*same, 0) if is_parked else None)
    assert stored(beside) == (*same, failures)

    parked.unpark(pack)
    assert stored(pack) == (*same, 0 if is_parked else failures + 1)
    assert stored(pack.parked) is None


@pytest.mark.parametrize(("poison", "failed"), [("", 0), ("3", 1), ("0123456789", 8)])
def test_few_items_are_tried_while_nothing_succeeds(poison: str, failed: int) -> None:
    """D1: all others are folded beside poison; where all fail, the function may be at fault."""
    packs = [pack_of(id_=str(number)) for number in range(10)]
    for pack in packs:
        Memory.current.put(
            WorkPack(key=pack_key(pack.text), batch_key="t", items=json.dumps([pack.id]))
        )

    def join(clients: object, batch: object, items: list[str]) -> None:
        if set(items) & set(poison):
            raise KeyError

    machine, folded = Machine(), fold.FoldResult()
    folding = fold.Folding("tallies", 500, join, json.loads, REPLAY)
    fold._fold(machine, folding, packs, folded)  # type: ignore[arg-type]

    assert (len(folded.failed_items), folded.items) == (failed, 10 - len(poison))
    left = [pack.id for pack in packs if Memory.current.get(pack_key(pack.text))]
    assert "".join(left) == poison


@pytest.mark.parametrize(("room", "sizes"), [(6, [4, 4, 1]), (1, [1] * 9)])
def test_outcomes_take_room_in_the_commit_of_a_fold(
    monkeypatch: pytest.MonkeyPatch, room: int, sizes: list[int]
) -> None:
    """D1: the packs for which it has none are folded by the next one; one that is gone has none."""
    monkeypatch.setattr(fold, "MAX_PACK_WRITES", room)
    packs = [pack_of(id_=str(number)) for number in range(10)]
    waited_for = packs[:8:2]
    for pack in packs[:8] + packs[9:]:
        put_pack(pack, keep_result=pack in waited_for)
    folded, joined = fold.FoldResult(), list[int]()

    def join(clients: object, batch: object, items: list[str]) -> list[str]:
        joined.append(len(items))
        return items

    machine: Any = Machine()
    fold._fold(machine, fold.Folding("tallies", 500, join, json.loads, REPLAY), packs, folded)

    assert [size for size in joined if size] == sizes
    assert folded.items == 9
    assert [pack for pack in packs if stored(pack)] == []
    outcomes = [pack for pack in packs if Memory.current.get(outcome_key(pack.text))]
    assert outcomes == waited_for


def test_each_item_of_a_pack_that_is_split_is_as_it_was() -> None:
    """D7: also when it is split a second time."""
    pack, beside = pack_of(3), pack_of(2, "b")
    for each in (pack, beside):
        put_pack(each)
    singles = [fold._split(pack) for _ in range(2)][-1]

    items = [("t", [f"item {number}"], "red", True, "00-1", 0) for number in range(3)]
    assert [stored(single) for single in singles] == items
    assert stored(pack) is None
    assert stored(beside) == ("t", ["item 0", "item 1"], "red", True, "00-1", 0)


def test_a_batch_of_one_is_no_lone_item_with_the_same_json() -> None:
    """D1: an item may be a list itself."""
    lone = Insertion("t", "[1]", "k", stated="[1]")
    batch = Insertion("t", "1", "k", stated="[1]", packs=(("1", 1),))
    assert not lone.is_duplicate_of(batch.digest)
    assert not batch.is_duplicate_of(lone.digest)
    assert lone.is_duplicate_of(lone.digest)
    assert batch.is_duplicate_of(batch.digest)


# Joiners


class Noted:
    """The task of joiners, and the epochs of a process, which note what they are asked for."""

    def __init__(self, is_missed: bool) -> None:
        self.joiners: list[tuple[Any, Any]] = []
        self.discarded: list[str] = []
        self.leave = lambda clients, admission: is_missed

    def message(self, join: Any, name: Any, at: Any) -> Any:
        return name, at and at.replace(tzinfo=None)

    def discard(self, clients: object, slot: Slot, epoch: str) -> None:
        self.discarded.append(epoch)


def joiners_of(monkeypatch: pytest.MonkeyPatch, noted: Noted) -> Joiners:
    settings: Any = SimpleNamespace(name="tallies", period_s=PERIOD_S, are_last=None)
    task: Any = noted
    joiners = Joiners(settings, task)
    epochs: Any = noted
    monkeypatch.setattr(joiners, "epochs", lambda clients: epochs)
    create = lambda clients, messages: noted.joiners.extend(messages)  # noqa: E731
    monkeypatch.setattr(joiners, "_create", create)
    return joiners


@pytest.mark.parametrize(
    ("options", "is_missed", "at_s", "joins", "discarded"),
    [
        ({}, False, 0, [], 0),
        ({"is_full": True}, False, 0, [(EPOCH, "full")] * 2, 2),
        ({"is_full": True}, False, PERIOD_S, [], 0),
        ({"is_full": True}, True, 0, [(EPOCH, "late", "a"), (EPOCH, "late", "b")], 0),
        ({"is_new": True, "is_shared": False}, False, 0, [(EPOCH,)] * 2, 0),
    ],
)
def test_an_epoch_that_is_left_has_the_joiner_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, bool],
    is_missed: bool,
    at_s: float,
    joins: list[tuple[str, ...]],
    discarded: int,
) -> None:
    """D3: each writer that was missed has its own; a full one takes no more writers."""
    noted, machine = Noted(is_missed), Machine(at_s)
    due = NOON + datetime.timedelta(seconds=PERIOD_S)
    stays = [(Admission(Slot("tallies", "t"), EPOCH, due, **options), pack_of(1, "a"))]
    stays.append((stays[0][0], pack_of(1, "b")))
    joiners_of(monkeypatch, noted).leave(machine, stays)  # type: ignore[arg-type]

    assert [name for name, _ in noted.joiners] == joins
    assert len(noted.discarded) == discarded
    assert {at for _, at in noted.joiners} <= ({due} if options.get("is_new") else {None})


@pytest.mark.parametrize("doubt", [None, ConnectionError()])
def test_a_transaction_in_doubt_is_looked_at_again_and_no_other(
    monkeypatch: pytest.MonkeyPatch, doubt: Exception | None
) -> None:
    """D1: in some seconds, for each of its keys, by a joiner of its own."""
    noted, machine = Noted(is_missed=False), Machine()
    joiners = joiners_of(monkeypatch, noted)
    transaction: Any = SimpleNamespace(doubt=doubt)
    inserts = TransactionalInserts(machine, joiners, transaction)  # type: ignore[arg-type]
    due = NOON + datetime.timedelta(seconds=PERIOD_S)
    for key, pack in (("t", pack_of(1, "a")), ("u", pack_of(1, "b"))):
        inserts._admissions[key] = Admission(Slot("tallies", key), EPOCH, due)
        inserts._packs[key] = pack
    inserts.on_outcome_unknown()

    again = NOON + datetime.timedelta(seconds=3)
    looks = [((EPOCH, "doubt", "a"), again), ((EPOCH, "doubt", "b"), again)]
    assert noted.joiners == (looks if doubt else [])


def test_a_writer_that_finds_an_epoch_closed_leaves_no_trace_in_it() -> None:
    """D3: its joiner would wait for a writer that is not inside."""
    machine: Any = Machine()
    epochs, slot = Epochs(PERIOD_S, lambda clients, key: Shape(PERIOD_S, 20)), Slot("tallies", "t")
    closed, beside = (_lock(slot, name) for name in ("closed", "beside"))
    machine.cache.counts.update({closed: ITEM + 1, beside: ITEM + OPEN + 1})

    assert epochs._step_in(machine, slot, "closed", 2) is None
    assert machine.cache.counts == {closed: ITEM + 1, beside: ITEM + OPEN + 1}


# The sweep


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_walk_that_finds_a_full_page_goes_on_behind_it(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """D3: also if that was all; each page has a name of its own."""
    keys = [pack_key(pack_of(1, str(number)).text) for number in range(count)]
    goes_on: list[Any] = []

    def find(queue: str, partition: str, *, after: str) -> Any:
        behind = [key for key in keys if key.id() > after]
        return SimpleNamespace(fetch=lambda limit, keys_only: behind[:limit])

    monkeypatch.setattr(sweep, "packs_of_queue", find)
    monkeypatch.setattr(sweep, "MAX_HERE", 3)
    woken: list[str] = []
    enqueue = lambda clients, args, name: goes_on.append((args, name))  # noqa: E731
    joiners: Any = SimpleNamespace(
        settings=SimpleNamespace(name="tallies", period_s=PERIOD_S),
        wake=lambda clients, due, minute: woken.extend(due),
    )
    machine: Any = Machine(at_s=600)
    drain = Drain("c", "m", began=NOON + datetime.timedelta(seconds=600), stale_s=0)
    task: Any = SimpleNamespace(enqueue=enqueue)
    sweep.drain(machine, joiners, task, drain)

    assert [(args.after, name) for args, name in goes_on] == (
        [(keys[2].id(), ("m", "c", keys[2].id()))] if count >= 3 else []
    )
    assert woken == [EPOCH]


def test_a_round_of_the_sweep_is_noted_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: the next one wakes what has become due since."""
    ended: list[str] = []
    nothing = SimpleNamespace(fetch=lambda limit, keys_only: [])
    monkeypatch.setattr(sweep, "packs_of_queue", lambda queue: nothing)
    monkeypatch.setattr(SweepRound, "end", lambda round_: ended.append(round_.name))
    machine: Any = Machine()
    joiners: Any = SimpleNamespace(
        settings=SimpleNamespace(name="tallies", period_s=PERIOD_S),
        wake=lambda clients, due, minute: None,
    )
    task: Any = None
    sweep.sweep(machine, joiners, task, stale_s=0)
    assert ended == ["fork-join:tallies"]


@pytest.mark.parametrize(("at_s", "woken"), [(19.9, []), (20.0, [EPOCH])])
def test_a_batch_is_stranded_some_time_after_its_period(at_s: float, woken: list[str]) -> None:
    """D3: its joiner is due at the end of the period, and not before."""
    found: list[str] = []
    machine: Any = Machine(at_s)
    joiners: Any = SimpleNamespace(
        settings=SimpleNamespace(name="tallies", period_s=PERIOD_S),
        wake=lambda clients, due, minute: found.extend(due),
    )
    round_ = SweepRound.begin(machine, "r")
    sweep._wake(machine, joiners, [pack_key(pack_of().text)], round_, stale_s=10.0)
    assert found == woken


_PARKED = test_an_item_is_parked_the_sooner_if_it_ever_failed_beside_others_that_went_through
_LEFT = test_an_epoch_that_is_left_has_the_joiner_that_it_needs
_DOUBT = test_a_transaction_in_doubt_is_looked_at_again_and_no_other
_ALONE = {"failures": 4, "fails_alone": True, "is_alone": False, "error": KeyError(),
          "is_parked": True}  # fmt: skip
BUGS = (
    Bug(*(fold, "_count_failure", "stored.fails_alone or is_alone", "is_alone", _PARKED), _ALONE),
    Bug(*(fold, "_count_failure", "if stored.fails_alone else MAX_FAILURES_OF_ALL", "", _PARKED),
        {**_ALONE, "fails_alone": False, "is_parked": False}),
    Bug(*(fold, "_fold", "if half and not folded.all_failed:", "if half:"),
        test_few_items_are_tried_while_nothing_succeeds, {"poison": "0123456789", "failed": 8}),
    Bug(*(parked, "_move", "        tag=stored.tag,\n", "", _PARKED), _ALONE),
    Bug(*(parked, "_move", "        keep_result=stored.keep_result,\n", "", _PARKED), _ALONE),
    Bug(*(fold, "_split", "keep_result=stored.keep_result", "keep_result=None"),
        test_each_item_of_a_pack_that_is_split_is_as_it_was),
    Bug(*(Insertion, "digest", 'f"batch:{stated}" if self.packs else stated', "stated"),
        test_a_batch_of_one_is_no_lone_item_with_the_same_json),
    Bug(*(Joiners, "_left", '"late", pack.id)', '"late")', _LEFT),
        {"options": {"is_full": True}, "is_missed": True, "at_s": 0,
         "joins": [(EPOCH, "late", "a"), (EPOCH, "late", "b")], "discarded": 0}),
    Bug(*(Joiners, "_left", "epochs.discard(clients, admission.slot, admission.epoch)", "pass",
          _LEFT), {"options": {"is_full": True}, "is_missed": False, "at_s": 0,
                   "joins": [(EPOCH, "full")] * 2, "discarded": 2}),
    Bug(*(Joiners, "fold_later", '"doubt", pack.id, at', '"doubt", at', _DOUBT),
        {"doubt": ConnectionError()}),
    Bug(*(TransactionalInserts, "on_outcome_unknown", "self._transaction.doubt is not None",
          "False", _DOUBT), {"doubt": ConnectionError()}),
    Bug(*(Epochs, "_step_in", "clients.cache.incr_existing(lock, -steps)", "pass"),
        test_a_writer_that_finds_an_epoch_closed_leaves_no_trace_in_it),
    Bug(*(sweep, "drain", "len(keys) == MAX_HERE", "len(keys) > MAX_HERE"),
        test_a_walk_that_finds_a_full_page_goes_on_behind_it, {"count": 4}),
    Bug(*(sweep, "sweep", "round_.end()", "pass"),
        test_a_round_of_the_sweep_is_noted_when_it_is_over),
    Bug(*(sweep, "_wake", "epoch.opened + period", "epoch.opened"),
        test_a_batch_is_stranded_some_time_after_its_period, {"at_s": 19.9, "woken": []}),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """D1, D3, D7: each field of a pack, and each name of a joiner, is for something."""
    bug.check_noticed(monkeypatch)
