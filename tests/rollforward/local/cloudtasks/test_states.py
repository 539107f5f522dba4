"""States of tasks, idleness, history, reset and clock of the engine."""

import pytest

from rollforward.local.cloudtasks.engine import history as history_module
from rollforward.local.cloudtasks.engine.engine_state import Retention
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.store.records import DUPLICATE, LIVE, NORMAL
from tests.rollforward.local.cloudtasks.engines import (
    DAY_S,
    NOW,
    PLACE,
    QUEUE,
    add,
    finish,
    history,
    ids,
    make_engine,
    make_ticking_engine,
)


def test_states_for_people(engine):
    """scheduled, queued, running, retrying, then done, failed or deleted."""
    later = messages.Task()
    messages.set_seconds(later.schedule_time, NOW + 60)
    add(engine, "a", schedule_time=later.schedule_time)
    task, _ = engine.history.of_task(f"{QUEUE}/tasks/a")
    seen = [engine.history.state_of(task)]
    engine.advance(60)
    seen.append(engine.history.state_of(task))
    (attempt,) = engine.begin_ready()
    seen.append(engine.history.state_of(task))
    engine.end_attempt(attempt.id, status=500)
    seen.append(engine.history.state_of(task))
    engine.advance(60)
    finish(engine)
    seen.append(engine.history.state_of(task))

    assert seen == ["scheduled", "queued", "running", "retrying", "done"]


@pytest.mark.parametrize("state", ["", LIVE, "queued"])
def test_the_history_is_read_page_by_page(engine, state):
    """Each task once, the newest first: also those that have not ended."""
    for name in "abcde":
        add(engine, name)

    seen, before = [], 0
    while page := engine.history.newest(state=state, before=before, limit=2):
        seen += [task.name[-1] for task in page]
        before = page[-1].sequence
        assert len(seen) <= 5

    assert seen == ["e", "d", "c", "b", "a"]


@pytest.mark.parametrize(("status", "state"), [(200, "done"), (500, "failed")])
def test_ended_tasks_stay_in_the_history(engine, status, state):
    """The service forgets an ended task; the emulator keeps it with its attempts."""
    task = messages.Task()
    task.retry_config.max_attempts = 1
    add(engine, "a", retry_config=task.retry_config)
    finish(engine, status)

    kept, attempts = engine.history.of_task(f"{QUEUE}/tasks/a")

    assert (kept.state, len(attempts)) == (state, 1)
    assert engine.counts()[QUEUE][state] == 1
    assert [t.name for t in engine.history.newest(state=state)] == [kept.name]


def test_history_is_bounded():
    """The oldest ended tasks are dropped, with their attempts; names stay blocked."""
    engine = make_engine(retention=Retention(ended_tasks=10))
    engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    for number in range(40):
        add(engine, f"t{number}")
    finish(engine)
    engine.sweep()

    kept = engine.history.newest(state="done", limit=100)

    assert len(kept) == 10
    with pytest.raises(Refused, match="already exists"):
        add(engine, "t0")
    engine.close()


def test_the_history_drops_what_ended_first():
    """However early it was created: a task that waited for long has just ended."""
    engine = make_engine(retention=Retention(ended_tasks=1))
    engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    later = messages.Task()
    messages.set_seconds(later.schedule_time, NOW + 60)
    add(engine, "created-first", schedule_time=later.schedule_time)
    add(engine, "ended-first")
    finish(engine)
    engine.advance(60)
    finish(engine)

    engine.sweep()

    assert [task.name[-13:] for task in engine.history.newest(state="done")] == ["created-first"]
    engine.close()


def test_operations_are_kept_for_a_day(engine):
    """A long-running operation can be asked for during a day, and is gone after it."""
    engine.operations.put("op", b"message")

    engine.advance(DAY_S)
    assert engine.operations.get("op") == b"message"

    engine.advance(1)
    assert engine.operations.get("op") is None


def test_idleness(engine):
    """Idle means: nothing runs, is due or retries; later ETAs and paused queues do not count."""
    assert engine.is_idle()
    add(engine, "a")
    assert not engine.is_idle()
    (attempt,) = engine.begin_ready()
    assert not engine.is_idle()
    engine.end_attempt(attempt.id, status=500)
    assert not engine.is_idle()
    assert engine.is_idle(with_retrying=False)
    engine.advance(60)
    finish(engine)
    assert engine.is_idle()

    later = messages.Task()
    messages.set_seconds(later.schedule_time, NOW + 3600)
    add(engine, schedule_time=later.schedule_time)
    assert engine.is_idle()
    assert not engine.is_idle(with_scheduled=True)

    engine.pause_queue(QUEUE)
    add(engine)
    assert engine.is_idle()


def test_large_answers_are_cut(engine):
    """At most 64 KB of an answer are kept."""
    add(engine, "a")
    (attempt,) = engine.begin_ready()
    engine.end_attempt(attempt.id, status=200, body=b"x" * 70_000)

    assert len(history(engine, "a")[0]["response_body"]) == 64 * 1024


def test_duration_of_an_attempt():
    """An attempt took the milliseconds that really passed, however far the clock was advanced."""
    engine, real = make_ticking_engine()
    add(engine, "a")
    (attempt,) = engine.begin_ready()
    engine.advance(60)
    real.advance(0.25)

    engine.end_attempt(attempt.id, status=200)

    assert history(engine, "a")[0]["duration_ms"] == 250
    engine.close()


def test_reset_of_one_queue(engine):
    """A reset of one queue leaves the others alone, and frees its names."""
    other = PLACE.queue_name("other")
    engine.create_queue(PLACE.parent, messages.Queue(name=other))
    task = messages.Task(name=f"{other}/tasks/b")
    task.http_request.url = "http://handler.invalid"
    engine.tasks.create(other, task)
    add(engine, "a")
    attempts = {attempt.task.queue: attempt for attempt in engine.begin_ready(limit=1)}

    engine.reset(QUEUE)

    assert engine.end_attempt(attempts[QUEUE].id, status=500) is None
    assert engine.get_task(f"{other}/tasks/b").name == f"{other}/tasks/b"
    assert engine.end_attempt(attempts[other].id, status=200) is attempts[other]
    assert attempts[other].task.state == "done"
    add(engine, "a")
    assert ids(engine.begin_ready()) == ["a"]


def test_full_reset(engine):
    """A full reset forgets tasks, names, faults and the added time; queues stay, resumed."""
    add(engine, "a")
    finish(engine)
    engine.pause_queue(QUEUE)
    engine.faults.add(kind="error")
    engine.advance(1000)

    engine.reset()

    assert engine.clock.now() == NOW
    assert engine.faults.all() == []
    add(engine, "a")
    assert len(engine.begin_ready()) == 1


@pytest.mark.parametrize(("status", "kind"), [(200, DUPLICATE), (500, NORMAL)])
def test_ended_task_can_be_retried(engine, status, kind):
    """retry_task brings a failed task back to life, and delivers a done one once more."""
    task = messages.Task()
    task.retry_config.max_attempts = 1
    name = add(engine, "a", retry_config=task.retry_config)
    finish(engine, status)

    engine.tasks.retry(name)

    assert not engine.is_idle()
    assert [attempt.kind for attempt in finish(engine)] == [kind]
    assert engine.history.of_task(name)[0].state == "done"


def test_waiting_task_can_be_retried_now(engine):
    """retry_task makes a task that waits for its backoff due at once."""
    name = add(engine, "a")
    finish(engine, 503)

    engine.tasks.retry(name)

    assert len(finish(engine)) == 1
    assert engine.is_idle()


def test_a_running_task_is_not_put_back_to_work(engine):
    """Its attempt decides what becomes of it, once."""
    name = add(engine, "a")
    (attempt,) = engine.begin_ready()

    engine.tasks.retry(name)

    assert (engine.due(), engine.begin_ready()) == ([], [])
    engine.end_attempt(attempt.id, status=200)
    assert attempt.task.state == "done"
    assert engine.is_idle()


def test_deleted_task_is_not_retried(engine):
    """What somebody deleted does not come back to life."""
    name = add(engine, "a")
    engine.tasks.delete(name)

    with pytest.raises(Refused, match="deleted"):
        engine.tasks.retry(name)

    assert engine.begin_ready() == []


def test_clock_moves_forward_only(engine):
    """The clock cannot be turned back."""
    with pytest.raises(ValueError, match="forward"):
        engine.advance(-1)


def test_a_store_that_went_back_takes_the_outcomes_since_along(engine):
    """What was done since is due again, and what was created since is dropped, its name free."""
    add(engine, "early")
    finish(engine)
    add(engine, "before")
    engine.advance(10)
    finish(engine)
    add(engine, "since")

    assert engine.tasks.go_back(NOW + 5) == 2
    tasks = {
        name: engine.history.of_task(f"{QUEUE}/tasks/{name}")[0] for name in ("early", "before")
    }
    states = [engine.history.state_of(task) for task in tasks.values()]
    assert states == ["done", "retrying"]
    add(engine, "since")
    assert ids(engine.begin_ready()) == ["before", "since"]


def test_what_runs_is_told_with_its_own_attempts(engine):
    """The newest first."""
    for name in "abc":
        add(engine, name)
    begun = {attempt.task.name[-1]: attempt for attempt in engine.begin_ready()}
    engine.end_attempt(begun["b"].id, status=500)

    running = engine.history.running(10)

    assert [task.name[-1] for task, _ in running] == ["c", "a"]
    assert [[row["id"] for row in rows] for _, rows in running] == [
        [begun["c"].id],
        [begun["a"].id],
    ]


def test_the_fault_that_failed_a_task_is_told(engine):
    """And none of a task that its handler has failed, nor of one that has not run."""
    engine.faults.add(kind="error", max_count=1)
    names = ["struck", "failed", "waits"]
    for name in names[:2]:
        add(engine, name)
    finish(engine, 500)
    add(engine, "waits")

    tasks = [engine.history.of_task(f"{QUEUE}/tasks/{name}")[0] for name in names]

    assert [engine.history.last_fault(task) for task in tasks] == ["error", "", ""]


def test_a_delivery_counts_as_many_operations_as_it_is_charged_for(engine):
    """One for each 32 KiB of its body that have begun, as Cloud Tasks has its price."""
    for size in (0, 32_768, 32_769):
        add(engine, http_request={"body": b"x" * size})

    finish(engine)

    assert engine.attempts.operations == 1 + 1 + 2


def test_tasks_are_found_by_what_their_requests_hold(engine, monkeypatch):
    """Among the newest 20,000."""
    for name in "abc":
        add(engine, name, http_request={"body": b"order 7" if name == "b" else b"order 8"})

    found, rows = engine.history.holding("order 7", 10)

    assert ([task.name[-1] for task in found], rows) == (["b"], [])
    assert len(engine.history.holding("order", 10)[0]) == 3
    monkeypatch.setattr(history_module, "_MAX_LOOKED_AT", 2)
    assert [task.name[-1] for task in engine.history.holding("order", 10)[0]] == ["c", "b"]
