"""Each fault, as the engine applies it."""

import random

import pytest

from rollforward.local.cloudtasks.delivery import statuses
from rollforward.local.cloudtasks.delivery.faults import FaultRuleError
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.store.records import DUPLICATE, NORMAL, OVERLAP
from tests.rollforward.local.cloudtasks.engines import (
    NOW,
    PLACE,
    QUEUE,
    add,
    finish,
    history,
    ids,
    make_engine,
)


def test_fault_duplicate(engine):
    """A duplicate comes after the success, is marked, and its failure changes nothing."""
    engine.faults.add(kind="duplicate")
    add(engine, "a")
    finish(engine)

    (copy,) = finish(engine, 500)

    assert (copy.kind, copy.number) == (DUPLICATE, 0)
    assert [row["kind"] for row in history(engine, "a")] == [NORMAL, DUPLICATE]
    assert copy.task.state == "done"
    assert engine.is_idle()


def test_fault_overlap(engine):
    """An overlapping delivery begins while the first one runs."""
    engine.faults.add(kind="overlap")
    add(engine, "a")

    first, second = engine.begin_ready()

    assert (first.kind, second.kind) == (NORMAL, OVERLAP)
    assert first.headers == second.headers
    engine.end_attempt(second.id, status=500)
    engine.end_attempt(first.id, status=200)
    assert first.task.state == "done"
    assert first.task.dispatch_count == 1


@pytest.mark.parametrize("end", ["done", "deleted"])
def test_a_task_that_has_ended_is_not_overlapped(engine, end):
    """A copy that has not begun by then does not begin, and one that has changes nothing."""
    engine.faults.add(kind="overlap")
    for task_id in ("waits", "runs"):
        add(engine, task_id)
    first = [engine.begin_attempt(f"{QUEUE}/tasks/{task_id}") for task_id in ("waits", "runs")]
    copy = engine.begin_attempt(first[1].task.name, OVERLAP)
    engine.advance(5)
    for attempt in first:
        if end == "done":
            engine.end_attempt(attempt.id, status=200)
        else:
            engine.tasks.delete(attempt.task.name)
    ended_at = copy.task.ended_at
    engine.advance(5)

    engine.end_attempt(copy.id, status=200)

    assert engine.begin_ready() == []
    assert (copy.task.state, copy.task.ended_at) == (end, ended_at)


def test_fault_delay(engine):
    """A delayed task goes param seconds late, once, and keeps its ETA."""
    engine.faults.add(kind="delay", param=30)
    add(engine, "a")
    assert engine.begin_ready() == []
    engine.advance(29)
    assert engine.begin_ready() == []
    engine.advance(1)

    (attempt,) = engine.begin_ready()

    assert attempt.faults == ["delay"]
    assert float(attempt.headers["X-CloudTasks-TaskETA"]) == NOW


def test_a_delayed_task_holds_up_no_other(engine):
    """What is due behind a delayed task goes at once, each of them."""
    engine.faults.add(kind="delay", task="a", param=30)
    for task_id in ("a", "b", "c"):
        add(engine, task_id)

    assert ids(engine.begin_ready()) == ["b", "c"]


def test_fault_reorder(engine):
    """With reorder the tasks come in another order, each of them once."""
    engine.faults.add(kind="reorder")
    names = [f"t{number}" for number in range(30)]
    for name in names:
        add(engine, name)

    order = ids(engine.begin_ready())

    assert order != names
    assert sorted(order) == sorted(names)


def test_fault_lose_response(engine):
    """A lost response makes a failure of a success, and the task comes again."""
    engine.faults.add(kind="lose_response", max_count=1)
    add(engine, "a")
    finish(engine, 200)
    engine.advance(60)

    (second,) = finish(engine, 200)

    assert second.number == 1
    assert second.headers["X-CloudTasks-TaskPreviousResponse"] == "503"
    first = history(engine, "a")[0]
    assert first["status"] == 200
    assert "lose_response" in first["error"]


def test_a_response_that_never_came_is_not_lost(engine):
    """lose_response loses an answer; an attempt without one keeps its own reason."""
    engine.faults.add(kind="lose_response")
    add(engine, "a")
    (attempt,) = engine.begin_ready()

    engine.end_attempt(attempt.id, error=statuses.DEADLINE_EXCEEDED)

    assert history(engine, "a")[0]["error"] == statuses.DEADLINE_EXCEEDED


def test_fault_error_and_kill_worker_mark_the_attempt(engine):
    """Faults that the dispatcher carries out are marks on the attempt."""
    engine.faults.add(kind="error")
    engine.faults.add(kind="kill_worker", param=0.5)
    add(engine, "a")

    (attempt,) = engine.begin_ready()

    assert attempt.answers_500
    assert attempt.kills_worker
    assert attempt.kill_after_s == 0.5
    assert attempt.faults == ["error", "kill_worker"]


@pytest.mark.parametrize(
    ("match", "struck"),
    [
        ({"queue": "work"}, ["a", "b"]),
        ({"queue": "other"}, []),
        ({"path": "/one"}, ["a"]),
        ({"task": "b"}, ["b"]),
        ({"max_count": 1}, ["a"]),
        ({"rate": 0}, []),
    ],
)
def test_fault_rules_match(engine, match, struck):
    """A rule strikes only what it matches, at most max_count times, and counts that."""
    rule = engine.faults.add(kind="error", **match)
    add(engine, "a", path="/one")
    add(engine, "b", path="/two")

    begun = engine.begin_ready()

    assert ids([attempt for attempt in begun if attempt.answers_500]) == struck
    assert rule.fired == len(struck)


def test_fault_rate_is_reproducible():
    """The same seed gives the same faults."""

    def struck(seed: int) -> list[bool]:
        engine = make_engine(rng=random.Random(seed))
        engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
        engine.faults.add(kind="error", rate=0.5)
        for _ in range(40):
            add(engine)
        found = [attempt.answers_500 for attempt in engine.begin_ready()]
        engine.close()
        return found

    assert struck(3) == struck(3)
    assert struck(3) != struck(4)
    assert 5 < sum(struck(3)) < 35


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "nonsense"},
        {"kind": "error", "rate": 2},
        {"kind": "error", "rate": "1"},
        {"kind": "error", "max_count": 0},
        {"kind": "delay", "param": -1},
        {"kind": "error", "queue": 5},
        {"kind": "error", "nonsense": 1},
        {},
    ],
)
def test_fault_rules_are_checked(engine, values):
    """A rule with a wrong value is refused."""
    with pytest.raises(FaultRuleError):
        engine.faults.add(**values)
