"""Task batches: members, seals, policies, completion exactly once, and what can be read."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.batches import ClosedError, TaskBatch, UnknownBatchError, reading
from rollforward.batches.adding import populate
from rollforward.batches.declaration import Completed
from rollforward.batches.errors import BadWorkError, DifferentWorkError
from rollforward.datastore.transactions import transact
from rollforward.tasks import BadArgumentsError, Task
from tests.infra.world import World
from tests.rollforward.batches.harness import (
    BEST,
    FAST,
    NOTES,
    RAN,
    TWO,
    Note,
    callbacks,
    deliver_all,
    deliver_next,
    mend,
    note,
    notes,
    outcomes,
    rows_of,
    told,
)

pytestmark = pytest.mark.fast


def run(world: World, batches: TaskBatch, *labels: str, batch_id: str = "b", **options: Any) -> int:
    """Populate a batch and deliver everything."""
    with world.context():
        added = batches.populate(world.clients, batch_id, notes(*labels), **options)
    world.settle()
    return added


def test_a_batch_completes_when_its_last_member_has_ended(world: World) -> None:
    """F1, F2: not before it is sealed, and once; the callback gets the counts."""
    assert run(world, NOTES, "a", "b") == 2
    with world.context():
        running = NOTES.progress("b")
        assert (running.done, running.waiting, running.is_complete) == (2, 0, False)
        assert told(NOTES, "b") == []
        NOTES.seal(world.clients, "b")
        NOTES.seal(world.clients, "b")
    world.settle()

    with world.context():
        assert told(NOTES, "b") == [
            {"outcome": "succeeded", "members": 2, "done": 2, "failed": 0, "cancelled": 0}
        ]
        assert NOTES.progress("b").outcome == "succeeded"
    assert callbacks(world) == {"notes:b:1": 1}


def test_a_batch_of_no_members_completes_when_it_is_sealed(world: World) -> None:
    """F3: also when there is nothing to wait for."""
    assert run(world, NOTES, seal=True) == 0

    with world.context():
        assert [completion["members"] for completion in told(NOTES, "b")] == [0]
    assert callbacks(world) == {"notes:b:1": 1}


def test_populating_again_adds_nothing(world: World) -> None:
    """F4: the same call, while it runs and when it is over; other members are an error."""
    assert run(world, NOTES, "a", "b") == 2
    assert run(world, NOTES, "a", "b", seal=True) == 0
    assert run(world, NOTES, "a", "b", seal=True) == 0
    with world.context(), pytest.raises(DifferentWorkError):
        NOTES.populate(world.clients, "b", notes("a", "other"))

    with world.context():
        assert outcomes(NOTES, "b") == ["done", "done"]
    assert RAN == {"b/a": 1, "b/b": 1}
    assert callbacks(world) == {"notes:b:1": 1}


def test_members_are_added_while_it_runs(world: World) -> None:
    """F4: each addition under a key of its own, until the batch is sealed."""
    run(world, NOTES, "a")
    run(world, NOTES, "b", idempotency_key="more")
    run(world, NOTES, "b", idempotency_key="more", seal=True)
    with world.context(), pytest.raises(ClosedError):
        NOTES.populate(world.clients, "b", notes("c"), idempotency_key="late")

    with world.context():
        assert told(NOTES, "b")[0]["done"] == 2


def test_a_running_member_adds_members_to_a_sealed_batch(world: World) -> None:
    """F2: the batch waits for them, since it waits for the members that add them: two, beside."""
    run(world, NOTES, "adds-one", "a", "adds-two", seal=True)

    with world.context():
        assert told(NOTES, "b")[0]["done"] == 5
    assert [RAN[f"b/added by adds-{which}"] for which in ("one", "two")] == [1, 1]
    assert callbacks(world) == {"notes:b:1": 1}


def test_failures_are_counted_and_listed_with_their_errors(world: World) -> None:
    """F6: by Reject at once, otherwise after the attempts that the task has."""
    run(world, NOTES, "a", "bad", "slow-bad", "says", seal=True)

    with world.context():
        failed = [(member.ordinal, member.error) for member in NOTES.failures("b")]
        results = [member.result for member in NOTES.results("b")]
        assert told(NOTES, "b")[0]["outcome"] == "failed"
    assert failed == [
        (1, "Reject: bad is rejected"),
        (2, "ValueError: slow-bad fails"),
    ]
    assert results == [None, None, None, {"label": "says"}]
    assert RAN["b/bad"] == 1
    assert RAN["b/slow-bad"] == 2


@pytest.mark.parametrize("pages", [2, 3, 4, 5])
def test_the_members_of_all_pages_are_listed(
    world: World, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """F6: in their order, however many pages are read at a time."""
    monkeypatch.setattr(populate, "MAX_PAGE_MEMBERS", 1)
    monkeypatch.setattr(reading, "PAGES_AT_A_TIME", 2)
    run(world, NOTES, *(["a"] * (pages - 1)), "bad", seal=True)

    with world.context():
        assert [member.ordinal for member in NOTES.results("b")] == list(range(pages))
        assert outcomes(NOTES, "b") == ["done"] * (pages - 1) + ["failed"]
        assert [member.ordinal for member in NOTES.failures("b")] == [pages - 1]


def test_each_fold_keeps_what_its_members_said(world: World) -> None:
    """F6: results and errors of one page that come one after the other."""
    labels = ("says one", "bad", "says two")
    with world.context():
        NOTES.populate(world.clients, "b", notes(*labels), seal=True)
    deliver_all(world, "default")
    for _ in labels:
        deliver_next(world, "fan-out")
        world.clock.sleep(1)
        deliver_all(world, "fork-join")

    with world.context():
        assert rows_of("notes:b")["BatchResults"] == 3
        members = [(member.result, member.error) for member in NOTES.results("b")]
    assert members == [
        ({"label": "says one"}, ""),
        (None, "Reject: bad is rejected"),
        ({"label": "says two"}, ""),
    ]


def test_failed_members_are_run_again(world: World) -> None:
    """F1, F6: the batch is re-opened for them alone, and completes once more."""
    run(world, NOTES, "a", "bad1", "bad2", seal=True)
    with world.context():
        mend()
        assert NOTES.run_again(world.clients, "b") == 2
        assert not NOTES.progress("b").is_complete
        assert NOTES.run_again(world.clients, "b") == 0
    world.settle()

    with world.context():
        assert [completion["outcome"] for completion in told(NOTES, "b")] == ["failed", "succeeded"]
        assert outcomes(NOTES, "b") == ["done"] * 3
        assert [member.error for member in NOTES.results("b")] == [""] * 3
        assert NOTES.run_again(world.clients, "b") == 0
    assert RAN == {"b/a": 1, "b/bad1": 2, "b/bad2": 2}
    assert callbacks(world) == {"notes:b:1": 1, "notes:b:2": 1}


def test_best_effort_succeeds_whatever_fails(world: World) -> None:
    run(world, BEST, "a", "bad", seal=True)

    with world.context():
        assert told(BEST, "b") == [
            {"outcome": "succeeded", "members": 2, "done": 1, "failed": 1, "cancelled": 0}
        ]


def test_fail_fast_cancels_the_rest(world: World) -> None:
    """F1: the first failure completes the batch; what did not begin never runs."""
    with world.context():
        FAST.populate(world.clients, "b", notes("bad", "a", "c"), seal=True)
    deliver_until_folded(world)
    world.settle()

    with world.context():
        assert told(FAST, "b") == [
            {"outcome": "failed", "members": 3, "done": 0, "failed": 1, "cancelled": 2}
        ]
        assert outcomes(FAST, "b") == ["failed", "cancelled", "cancelled"]
    assert RAN == {"b/bad": 1}
    assert callbacks(world) == {"fast:b:1": 1}


def test_what_was_cancelled_is_run_again_with_what_failed(world: World) -> None:
    with world.context():
        FAST.populate(world.clients, "b", notes("bad", "a", "c"), seal=True)
    deliver_until_folded(world)
    world.settle()
    with world.context():
        mend()
        assert FAST.run_again(world.clients, "b") == 3
    world.settle()

    with world.context():
        assert outcomes(FAST, "b") == ["done"] * 3
        assert told(FAST, "b")[1]["outcome"] == "succeeded"
    assert callbacks(world) == {"fast:b:1": 1, "fast:b:2": 1}


def test_done_at_n_completes_at_n(world: World) -> None:
    """F1: sealed or not; with fewer it fails when all have ended, also when none has failed."""
    run(world, TWO, "a", "c")
    run(world, TWO, "a", "bad", batch_id="short", seal=True)
    run(world, TWO, "a", batch_id="few", seal=True)

    with world.context():
        assert told(TWO, "b")[0]["outcome"] == "succeeded"
        assert told(TWO, "short")[0]["outcome"] == "failed"
        assert [(call["outcome"], call["failed"]) for call in told(TWO, "few")] == [("failed", 0)]
        assert TWO.run_again(world.clients, "b") == 0


def test_what_has_succeeded_at_n_is_not_run_again(world: World) -> None:
    """F1: its callback has come, although members were cancelled and one has failed."""
    with world.context():
        TWO.populate(world.clients, "b", notes("bad", "a", "c", "d"), seal=True)
    world.settle()
    with world.context():
        before = told(TWO, "b")
        assert TWO.run_again(world.clients, "b") == 0
    world.settle()

    with world.context():
        assert told(TWO, "b") == before
        assert [call["outcome"] for call in before] == ["succeeded"]


def test_a_cancelled_batch_completes_at_once(world: World) -> None:
    """F1: what has not begun never runs, and a late end counts no more."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a", "c"))
        assert NOTES.cancel(world.clients, "b")
        assert not NOTES.cancel(world.clients, "b")
    world.settle()

    with world.context():
        assert told(NOTES, "b") == [
            {"outcome": "cancelled", "members": 2, "done": 0, "failed": 0, "cancelled": 2}
        ]
        assert outcomes(NOTES, "b") == ["cancelled"] * 2
    assert not RAN


def test_a_batch_is_made_in_a_transaction_or_not_at_all(world: World) -> None:
    """B1, B2: with its members, whose tasks are created if it is committed."""

    def body(*, fails: bool) -> None:
        NOTES.populate_in_transaction(world.clients, "b", notes("a"), seal=True)
        if fails:
            raise ZeroDivisionError

    with world.context(), pytest.raises(ZeroDivisionError):
        transact(lambda: body(fails=True))
    world.settle()
    with world.context():
        assert rows_of("notes:b").total() == 0
        transact(lambda: body(fails=False))
    world.settle()

    with world.context():
        assert told(NOTES, "b")[0]["done"] == 1


def test_what_cannot_be_a_member_changes_nothing(world: World) -> None:
    """A task that is not listed, arguments of another type or too long, an id with a colon."""
    other = Task("/tasks/other", "default", Note, lambda clients, args: None)
    bad: list[tuple[Any, Any, type[Exception]]] = [
        ("b", [(other, Note("x"))], BadWorkError),
        ("b", [(note, Completed("a", "b", 1, "", 0, 0, 0, 0))], BadArgumentsError),
        ("b", notes("x" * 50_000), BadWorkError),
        ("b", notes("é" * 20_000), BadWorkError),
        ("b", [note], BadWorkError),
        ("b", [(note,)], BadWorkError),
        (17, notes("x"), BadWorkError),
        ("a:b", notes("x"), BadWorkError),
        ("", notes("x"), BadWorkError),
        ("x" * 201, notes("x"), BadWorkError),
        ("é" * 101, notes("x"), BadWorkError),
    ]
    with world.context():
        for batch_id, work, error in bad:
            with pytest.raises(error):
                NOTES.populate(world.clients, batch_id, work)
        assert rows_of("notes").total() == 0
        with pytest.raises(UnknownBatchError):
            NOTES.seal(world.clients, "b")


def deliver_until_folded(world: World) -> None:
    """Deliver the first member and the fold of its end; the other members still wait."""
    deliver_next(world, "default")
    deliver_next(world, "fan-out")
    world.clock.sleep(1)
    deliver_next(world, "fork-join")
