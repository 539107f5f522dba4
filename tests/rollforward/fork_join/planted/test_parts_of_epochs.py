"""Epochs of one process and joiners of a writer, without a store, and planted bugs."""

from __future__ import annotations

import datetime
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.fork_join import insert
from rollforward.fork_join.batching import adaptive, epochs
from rollforward.fork_join.batching.epochs import Epochs, Shape, Slot
from rollforward.fork_join.entities import PackId
from rollforward.fork_join.items import Insertion
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
SLOT, BESIDE = Slot("tallies", "t"), Slot("tallies", "t", shard=1)


class Machine:
    """The clients of a process without memcached, whose clock the test sets."""

    def __init__(self) -> None:
        self.at_s = 0.0
        numbers = itertools.count()
        self.new_id = lambda: f"{next(numbers):024x}"[::-1]
        self.clock = SimpleNamespace(now=lambda: NOON + datetime.timedelta(seconds=self.at_s))
        nothing = lambda *args: None  # noqa: E731
        self.cache = SimpleNamespace(get=nothing, add=nothing, incr_existing=nothing)


def known() -> Epochs:
    return Epochs(10.0, lambda clients, key: Shape(4.0, 20))


@pytest.mark.parametrize(
    ("later_s", "is_shared_again"), [(0, True), (3.9, True), (4, False), (-5, True), (-7, False)]
)
def test_an_epoch_of_one_process_is_joined_while_its_joiner_is_to_come(
    later_s: float, is_shared_again: bool
) -> None:
    """D1: and not if the clock was put back by more than a period: the joiner would be late."""
    machine: Any = Machine()
    of_process = known()
    first, beside = of_process.enter(machine, SLOT, 1), of_process.enter(machine, BESIDE, 1)
    machine.at_s = later_s
    again = of_process.enter(machine, SLOT, 1)

    assert (first.is_new, first.is_shared, beside.epoch == first.epoch) == (True, False, False)
    assert (again.epoch == first.epoch) is is_shared_again
    assert again.is_new is not is_shared_again


def test_writers_believe_in_an_epoch_until_it_is_gone() -> None:
    """D1: its joiner comes again then, and not before; of another key they believe in none."""
    machine: Any = Machine()
    of_process = known()
    epoch = of_process.enter(machine, SLOT, 1).epoch
    gone = epochs.gone_at(epoch, 10.0).replace(tzinfo=datetime.UTC)
    for early_s, is_open in ((0.001, True), (0, False)):
        machine.at_s = (gone - NOON).total_seconds() - early_s
        assert of_process._is_valid_epoch(machine, SLOT, epoch) is is_open
    machine.at_s = 0
    assert not of_process._is_valid_epoch(machine, Slot("tallies", "other"), epoch)
    assert not of_process._is_valid_epoch(machine, Slot("others", "t"), epoch)


def test_what_is_measured_in_one_of_some_shards_counts_for_all() -> None:
    """D1: and what memcached makes up is within the declaration."""
    limits = adaptive.Limits(target_latency_s=1.0, period_s=1.0, max_batch_size=100, shards=4)
    policy = adaptive.BatchPolicy(period_s=0.5, max_batch_size=50, shards=3)
    stats = adaptive.BatchStats(items=1_000, open_s=1.0, fold_s=0.01)
    assert adaptive.next_policy(policy, stats, limits).items_per_s == 3_000
    assert adaptive.next_policy(policy, stats, limits).shards == 2

    body = adaptive.adapter_of(adaptive.BatchPolicy).dump_json(
        adaptive.BatchPolicy(period_s=9.0, max_batch_size=900, shards=9)
    )
    clients: Any = SimpleNamespace(cache=SimpleNamespace(get=lambda name: body))
    read = adaptive.read(clients, "t", limits)
    assert (read.period_s, read.max_batch_size, read.shards) == (1.0, 100, 4)


@pytest.mark.parametrize(
    ("asked", "is_kept"), [("nn", None), ("yn", True), ("ny", True), ("yy", True)]
)
def test_a_pack_keeps_its_results_if_anybody_asked(asked: str, is_kept: bool | None) -> None:
    """D1: whoever came first into the commit that they share."""
    id_ = PackId("tallies", "c0ffee012345.20300501T120000000000.1a2b3c4d", len(asked), 0, "c0ffee")
    insertions = [Insertion("t", "1", keep_result=letter == "y") for letter in asked]
    with offline(), Memory():
        row = insert._Pack(id_, insertions, "1,1").row()

    assert row.properties["keep_result"] is is_kept


_OF_ONE = test_an_epoch_of_one_process_is_joined_while_its_joiner_is_to_come
_GONE = test_writers_believe_in_an_epoch_until_it_is_gone
_RATE = test_what_is_measured_in_one_of_some_shards_counts_for_all
BUGS = (
    Bug(*(insert._Pack, "row", "any(insertion.keep_result for insertion in self.insertions)"),
        "self.insertions[0].keep_result", test_a_pack_keeps_its_results_if_anybody_asked,
        {"asked": "ny", "is_kept": True}),
    Bug(*(Epochs, "_private", "private.due - self._period <= at < private.due"),
        "at < private.due", _OF_ONE, {"later_s": -7, "is_shared_again": False}),
    Bug(*(Epochs, "_private", "private.due - self._period <= at < private.due"),
        "private.due - self._period <= at", _OF_ONE, {"later_s": 4, "is_shared_again": False}),
    Bug(*(epochs, "gone_at", "period_s + FORGOTTEN_AFTER_S", "period_s", _GONE)),
    Bug(*(Epochs, "_is_valid_epoch", "epoch.key_hash == slot.key_hash and ", "", _GONE)),
    Bug(*(adaptive, "next_policy", "policy.shards * items_per_s", "items_per_s", _RATE)),
    Bug(*(adaptive, "read", "min(max(policy.shards, 1), limits.shards)", "policy.shards", _RATE)),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """D1: each guard of an epoch is for something."""
    bug.check_noticed(monkeypatch)
