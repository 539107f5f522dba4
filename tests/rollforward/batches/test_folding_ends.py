"""How ends are folded: the last without a wait, and by a guarded commit where that is enough."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.batches import running_cache
from rollforward.batches.completion import STALE_S, End, count_if_current, end_members
from rollforward.batches.entities import BatchPage, state_key
from rollforward.fork_join import Batch
from rollforward.fork_join import fold as fork_join_fold
from rollforward.runtime.clock import naive_utc
from tests.infra.clocks import ahead
from tests.infra.world import World
from tests.rollforward.batches.harness import (
    NOTES,
    RAN,
    deliver_all,
    deliver_next,
    notes,
    outcomes,
    rows_here,
    told,
)

LABELS = ("a", "says", "c")


def populate(world: World, *labels: str, seal: bool = True) -> None:
    with world.context():
        NOTES.populate(world.clients, "b", notes(*labels), seal=seal)
    deliver_all(world, "default")


def run_all(world: World) -> None:
    """Run all members, at one moment of the clock; then what is due."""
    deliver_all(world, "fan-out")
    deliver_all(world, "fork-join")


def is_complete(world: World) -> bool:
    with world.context():
        return NOTES.progress("b").is_complete


def test_the_last_end_of_a_batch_waits_for_no_others(world: World) -> None:
    """Those before it do, for a period."""
    populate(world, *LABELS)
    for _ in LABELS[:2]:
        deliver_next(world, "fan-out")
    deliver_all(world, "fork-join")
    with world.context():
        assert NOTES.progress("b").done == 0

    run_all(world)

    assert is_complete(world)
    world.settle()
    with world.context():
        assert told(NOTES, "b")[0]["done"] == len(LABELS)
        assert outcomes(NOTES, "b") == ["done"] * len(LABELS)


@pytest.mark.parametrize("how", ["is not sealed", "lost its counter", "counted too much"])
def test_a_wrong_count_of_ends_costs_a_period_and_no_more(world: World, how: str) -> None:
    """F1: the counter in memcached is a hint."""
    populate(world, *LABELS, seal=how != "is not sealed")
    deliver_next(world, "fan-out")
    if how == "lost its counter":
        world.flush()
    if how == "counted too much":
        world.clients.cache.incr("batches:ended:notes:b", 5, 60)
    run_all(world)
    assert not is_complete(world)

    with world.context():
        NOTES.seal(world.clients, "b")
    world.settle()

    assert is_complete(world)
    assert {f"b/{label}": 1 for label in LABELS} == RAN


def test_a_batch_that_is_run_again_is_not_counted_in_memcached(world: World) -> None:
    """Nobody has written down how many members run again."""
    populate(world, "bad", "b")
    world.settle()
    with world.context():
        NOTES.run_again(world.clients, "b")
        assert running_cache.accepts_members(world.clients, "notes:b", 2)

        assert not running_cache.completes_batch(world.clients, "notes:b", 2)


def test_ends_are_counted_without_a_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: but for those that complete the batch; results are kept in the same commit."""
    committed: list[int] = []
    sound = fork_join_fold.commit_if_current

    def commit_if_current(client: Any, *, puts: Any, deletes: Any) -> Any:
        committed.append(len(puts))
        return sound(client, puts=puts, deletes=deletes)

    monkeypatch.setattr(fork_join_fold, "commit_if_current", commit_if_current)
    populate(world, *LABELS)
    deliver_next(world, "fan-out")
    deliver_next(world, "fan-out")
    world.clock.sleep(1)
    deliver_all(world, "fork-join")
    with world.context():
        due = state_key("notes:b").get().due
    left_alone_s = (due - naive_utc(world.clock.now())).total_seconds()

    assert 0.99 * STALE_S < left_alone_s <= STALE_S  # The sweep wakes none that moves.
    assert committed == [3]  # The batch, its page, and a row of results.
    with world.context():
        assert NOTES.progress("b").done == 2
    world.settle()
    assert is_complete(world)
    assert len(committed) == 1
    with world.context():
        results = [member.result for member in NOTES.results("b")]
    assert results == [None, {"label": "says"}, None]


@pytest.mark.parametrize(
    "error",
    [
        rpc_errors.FailedPrecondition("made by a test"),
        rpc_errors.Aborted("made by a test"),
        rpc_errors.DeadlineExceeded("made by a test"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("took_effect", [False, True])
def test_a_guarded_commit_that_fails_is_left_to_a_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, *, took_effect: bool
) -> None:
    """F1: each end is counted once, also when the commit had taken effect."""
    sound = fork_join_fold.commit_if_current

    def commit_if_current(client: Any, *, puts: Any, deletes: Any) -> Any:
        if took_effect:
            sound(client, puts=puts, deletes=deletes)
        raise error

    monkeypatch.setattr(fork_join_fold, "commit_if_current", commit_if_current)
    populate(world, *LABELS)
    deliver_next(world, "fan-out")
    world.clock.sleep(1)
    deliver_all(world, "fork-join")

    with world.context():
        assert NOTES.progress("b").done == 1
    world.settle()
    assert is_complete(world)


def test_a_guarded_commit_loses_against_another_writer(world: World) -> None:
    """F1: what was read is no longer so, and nothing is written."""
    populate(world, *LABELS)
    with world.context():
        page = rows_here(BatchPage)[0].key.id()
        ends = [End(page, 0, 1, is_done=True)]
        batch = Batch("notes:b", "e", world.clock.now().replace(tzinfo=None))
        puts = count_if_current(world.clients, batch, ends)
        assert puts is not None
        NOTES.cancel(world.clients, "b")

        with pytest.raises((rpc_errors.FailedPrecondition, rpc_errors.Aborted)):
            fork_join_fold.commit_if_current(world.clients.datastore, puts=puts)

        assert state_key("notes:b").get().done == 0
        assert count_if_current(world.clients, batch, ends) is None


def test_a_second_end_of_a_member_needs_a_transaction(world: World) -> None:
    """F1: nothing would be written that guards what was seen."""
    populate(world, *LABELS)
    deliver_next(world, "fan-out")
    world.clock.sleep(1)
    deliver_all(world, "fork-join")
    with world.context():
        page = rows_here(BatchPage)[0]
        end = End(page.key.id(), page.letters.index("d"), 1, is_done=True)
        batch = Batch("notes:b", "e", world.clock.now().replace(tzinfo=None))
        assert count_if_current(world.clients, batch, [end]) is None
        end_members.insert(world.clients, "notes:b", end)

    world.settle()

    with world.context():
        assert NOTES.progress("b").done == len(LABELS)
    assert is_complete(world)


@pytest.mark.parametrize(
    ("later_s", "generation", "reads"),
    [(0.0, 1, 0), (0.9, 1, 0), (1.1, 1, 1), (-1.0, 1, 1), (0.5, 2, 1)],
)
def test_a_process_reads_a_batch_once_a_second(
    world: World, later_s: float, generation: int, reads: int
) -> None:
    """F7: again if the clock was put back, or for a member of another generation."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a"))
        assert running_cache.accepts_members(world.clients, "notes:b", 1)
        later = ahead(world.clients, later_s)
        cost_before = world.clients.meter.total()
        assert running_cache.accepts_members(later, "notes:b", generation)
        assert (world.clients.meter.total() - cost_before).reads == reads
