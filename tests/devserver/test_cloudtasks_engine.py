"""The state machine on its own: a test is the dispatcher, in whatever order it likes."""

import doctest
import random
from typing import Any

import pytest

from devserver.cloudtasks import control, messages, retries, statuses
from devserver.cloudtasks.clock import Clock
from devserver.cloudtasks.database import StoreInUseError
from devserver.cloudtasks.engine import Engine
from devserver.cloudtasks.engine_state import Retention
from devserver.cloudtasks.errors import Refused
from devserver.cloudtasks.faults import FaultRuleError
from devserver.cloudtasks.names import Place
from devserver.cloudtasks.outgoing import AppEngineApp
from devserver.cloudtasks.records import DUPLICATE, FORCED, NORMAL, OVERLAP
from devserver.cloudtasks.store import Store

NOW = 1_800_000_000.0
PLACE = Place("demo-local", "us-central1")
QUEUE = PLACE.queue_name("work")
DAY_S = 86400


def make_engine(path: Any = None, **arguments: Any) -> Engine:
    """Return an engine whose clock stands still until it is advanced."""
    arguments.setdefault("rng", random.Random(1))
    arguments.setdefault("clock", Clock(lambda: NOW))
    app = AppEngineApp("http://app.invalid")
    return Engine(Store(path), PLACE, app, in_memory=True, **arguments)


def make_ticking_engine(**arguments: Any) -> tuple[Engine, Clock]:
    """Return an engine with one queue, and the clock that its own follows without a sweep."""
    real = Clock(lambda: NOW)
    made = make_engine(clock=Clock(real.now), **arguments)
    made.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    return made, real


@pytest.fixture
def engine():
    """An engine with one queue."""
    made = make_engine()
    made.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    yield made
    made.close()


def add(engine: Engine, task_id: str = "", path: str = "/ok", **fields: Any) -> str:
    """Create a task and return its name."""
    task = messages.Task(name=f"{QUEUE}/tasks/{task_id}" if task_id else "", **fields)
    task.http_request.url = f"http://handler.invalid{path}"
    return engine.tasks.create(QUEUE, task).name


def ids(attempts: list[Any]) -> list[str]:
    """Return the short task ids of attempts."""
    return [attempt.task.name.rpartition("/")[2] for attempt in attempts]


def finish(engine: Engine, status: int = 200) -> list[Any]:
    """Begin and end what is ready, once."""
    begun = engine.begin_ready()
    for attempt in begun:
        engine.end_attempt(attempt.id, status=status)
    return begun


def history(engine: Engine, task_id: str) -> list[Any]:
    """Return the attempts of a task."""
    return engine.history.of_task(f"{QUEUE}/tasks/{task_id}")[1]


# --- a driver of one's own ------------------------------------------------


def test_due_deliveries_can_be_taken_in_any_order(engine):
    """A driver picks from due() what it likes, and rates do not hold it back."""
    for task_id in ("a", "b", "c"):
        add(engine, task_id)

    due = engine.due()
    last = engine.begin_attempt(due[-1].task_name)

    assert [d.task_name.rpartition("/")[2] for d in due] == ["a", "b", "c"]
    assert ids([last]) == ["c"]
    assert [d.task_name.rpartition("/")[2] for d in engine.due()] == ["a", "b"]


def test_due_deliveries_of_one_queue(engine):
    """A driver may ask for one queue's deliveries, whichever of them was created first."""
    other = PLACE.queue_name("other")
    engine.create_queue(PLACE.parent, messages.Queue(name=other))
    add(engine, "a")
    task = messages.Task(name=f"{other}/tasks/b")
    task.http_request.url = "http://handler.invalid"
    engine.tasks.create(other, task)

    assert [d.task_name for d in engine.due(QUEUE)] == [f"{QUEUE}/tasks/a"]
    assert [d.task_name for d in engine.due(other)] == [task.name]


def test_random_driver_delivers_each_task_once(engine):
    """Whatever the order and the failures, each task ends with exactly one success."""
    rng = random.Random(7)
    names = {add(engine) for _ in range(50)}
    succeeded: list[str] = []

    while not engine.is_idle():
        due = engine.due()
        if not due:
            engine.advance(3600)
            continue
        chosen = rng.choice(due)
        attempt = engine.begin_attempt(chosen.task_name, chosen.kind)
        status = rng.choice([200, 500])
        engine.end_attempt(attempt.id, status=status)
        if status == 200:
            succeeded.append(chosen.task_name)

    assert sorted(succeeded) == sorted(names)


@pytest.mark.parametrize("kind", [FORCED, DUPLICATE, OVERLAP])
def test_a_driver_begins_deliveries_of_each_kind(engine, kind):
    """What is due besides a task's own turn begins under its kind, once."""
    if kind != FORCED:
        engine.faults.add(kind=kind, max_count=1)
    name = add(engine, "a")
    if kind == FORCED:
        engine.tasks.run(name)
    else:
        first = engine.begin_attempt(name)
    if kind == DUPLICATE:
        engine.end_attempt(first.id, status=200)

    (delivery,) = engine.due()
    attempt = engine.begin_attempt(delivery.task_name, delivery.kind)

    assert (delivery.kind, attempt.kind, attempt.task.name) == (kind, kind, name)
    assert engine.due() == []


def test_begin_attempt_of_unknown_task(engine):
    """A driver cannot begin what is not there."""
    with pytest.raises(Refused):
        engine.begin_attempt(f"{QUEUE}/tasks/missing")
    with pytest.raises(Refused):
        engine.begin_attempt(f"{QUEUE}/tasks/missing", DUPLICATE)


def test_attempt_ends_once(engine):
    """The second end of an attempt is passed over."""
    add(engine, "a")
    (attempt,) = engine.begin_ready()

    assert engine.end_attempt(attempt.id, status=500) is attempt
    assert engine.end_attempt(attempt.id, status=200) is None
    assert engine.history.state_of(attempt.task) == "retrying"


@pytest.mark.parametrize("first_to_end", [0, 1])
@pytest.mark.parametrize("statuses", [(500, 200), (200, 500), (500, 500)])
def test_of_two_attempts_at_once_the_last_failure_decides(engine, first_to_end, statuses):
    """One success is enough, whichever ends first; only when both failed comes one retry."""
    name = add(engine, "twice")
    (first,) = engine.begin_ready()
    engine.tasks.run(name)
    (second,) = engine.begin_ready()
    pair = [(first, statuses[0]), (second, statuses[1])]
    ending = [pair[first_to_end], pair[1 - first_to_end]]

    engine.end_attempt(ending[0][0].id, status=ending[0][1])
    between = engine.history.state_of(first.task)
    engine.end_attempt(ending[1][0].id, status=ending[1][1])

    has_succeeded = 200 in statuses
    assert between == ("done" if ending[0][1] == 200 else "running")
    assert engine.history.state_of(first.task) == ("done" if has_succeeded else "retrying")
    retries = [attempt.next_retry_at for attempt in (first, second) if attempt.next_retry_at]
    assert len(retries) == (0 if has_succeeded else 1)


def test_the_dispatcher_sleeps_until_the_task_and_its_token_are_there(engine):
    """wake_at is the later of due time and next token: any earlier one would be a busy wait."""
    lane = engine.queues.all()[0]
    engine.queues.update(
        messages.Queue(name=QUEUE, rate_limits={"max_dispatches_per_second": 0.5}),
        ["rate_limits.max_dispatches_per_second"],
    )
    later = messages.Task()
    messages.set_seconds(later.schedule_time, NOW + 60)
    add(engine, "later", schedule_time=later.schedule_time)
    with_tokens = engine.wake_at()
    lane.bucket.tokens = 0.0
    without_tokens = engine.wake_at()
    add(engine, "now")
    due_without_token = engine.wake_at()

    assert with_tokens == NOW + 60
    assert without_tokens == NOW + 60
    assert due_without_token == NOW + 2
    assert engine.begin_ready() == []


def test_beginning_what_is_ready_is_no_news(engine):
    """The dispatcher begins because it was told of a change; telling it again would never end."""
    told: list[str] = []
    add(engine, "a")
    engine.change_listeners.append(lambda: told.append("change"))

    (attempt,) = engine.begin_ready()
    assert engine.begin_ready() == []
    assert told == []

    engine.end_attempt(attempt.id, status=200)
    assert told == ["change"]


def test_tasks_of_one_time_keep_their_order(engine):
    """Tasks that are due at the same time go in the order of their creation."""
    for number in range(20):
        add(engine, f"t{number}")

    assert ids(engine.begin_ready()) == [f"t{number}" for number in range(20)]


# --- names ----------------------------------------------------------------


def test_a_tasks_name_is_free_from_the_moment_its_block_expires():
    """24 hours after its end a task is unknown and its name free, though nobody has swept."""
    engine, real = make_ticking_engine()
    name = add(engine, "a")
    finish(engine)

    real.advance(DAY_S - 1)
    with pytest.raises(Refused, match="existed recently"):
        engine.get_task(name)
    with pytest.raises(Refused, match="already exists"):
        add(engine, "a")

    real.advance(1)
    with pytest.raises(Refused, match="Requested entity was not found"):
        engine.get_task(name)
    assert add(engine, "a") == name
    engine.close()


def test_a_queues_name_is_free_from_the_moment_its_block_expires():
    """Three days after its deletion a queue's name is free, though nobody has swept."""
    engine, real = make_ticking_engine()
    engine.delete_queue(QUEUE)

    real.advance(3 * DAY_S - 1)
    with pytest.raises(Refused, match="too recently"):
        engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))

    real.advance(1)
    assert engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE)).name == QUEUE
    engine.close()


def test_two_stores_make_up_different_ids():
    """Ids are numbers of 64 bits, as the service's are: nobody builds on those of another store."""
    engines = [make_ticking_engine()[0] for _ in range(2)]

    names = [{add(engine) for _ in range(20)} for engine in engines]

    assert len(names[0] | names[1]) == 40
    assert all(int(name.rpartition("/")[2]) < 2**64 for name in names[0])
    for engine in engines:
        engine.close()


# --- states, idleness, history --------------------------------------------


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
    (attempt, *_) = engine.begin_ready(limit=1)

    engine.reset(QUEUE)

    assert engine.end_attempt(attempt.id, status=500) is None
    assert engine.get_task(f"{other}/tasks/b").name == f"{other}/tasks/b"
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

    assert [attempt.kind for attempt in finish(engine)] == [kind]
    assert engine.history.of_task(name)[0].state == "done"


def test_waiting_task_can_be_retried_now(engine):
    """retry_task makes a task that waits for its backoff due at once."""
    name = add(engine, "a")
    finish(engine, 503)

    engine.tasks.retry(name)

    assert len(finish(engine)) == 1
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


# --- faults ---------------------------------------------------------------


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


# --- on disk --------------------------------------------------------------


def test_everything_survives_a_restart(tmp_path):
    """Queues, tasks, counts, names, attempts and keys are there again after a restart."""
    path = tmp_path / "tasks.sqlite3"
    before = make_engine(path)
    before.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    add(before, "done")
    finish(before)
    add(before, "retrying")
    finish(before, 503)
    before.pause_queue(QUEUE)
    before.advance(100)
    before.close()

    after = make_engine(path)

    assert after.clock.offset_s == 100
    assert after.queues.get(QUEUE).state == messages.PAUSED
    assert after.tokens.key_id == before.tokens.key_id
    with pytest.raises(Refused, match="already exists"):
        add(after, "done")
    after.resume_queue(QUEUE)
    (attempt,) = after.begin_ready()
    assert ids([attempt]) == ["retrying"]
    assert attempt.headers["X-CloudTasks-TaskRetryCount"] == "1"
    assert attempt.headers["X-CloudTasks-TaskPreviousResponse"] == "503"
    assert len(history(after, "done")) == 1
    after.close()


def test_going_back_revives_what_ended_and_drops_what_was_created(tmp_path):
    """Ended ones are due at once, once, with names and counts; newer ones are as if never made."""
    path = tmp_path / "tasks.sqlite3"
    engine = make_engine(path)
    engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    for task_id in ("early", "late", "failed", "gone"):
        add(engine, task_id, retry_config={"max_attempts": 1})
    early, late, failed, gone = engine.begin_ready()
    engine.end_attempt(early.id, status=200)
    engine.advance(10)
    since = engine.clock.now()
    engine.end_attempt(late.id, status=200)
    engine.end_attempt(failed.id, status=500)
    engine.tasks.delete(gone.task.name)
    add(engine, "newer")
    finish(engine)
    add(engine, "newest")
    engine.close()

    again = make_engine(path)
    assert again.tasks.go_back(since) == 3
    assert again.tasks.go_back(since) == 0
    begun = again.begin_ready()

    assert sorted(ids(begun)) == ["failed", "late"]
    assert [attempt.headers["X-CloudTasks-TaskRetryCount"] for attempt in begun] == ["1", "1"]
    with pytest.raises(Refused, match="already exists"):
        add(again, "late")
    add(again, "newer")
    add(again, "newest")
    begun += again.begin_ready()
    for attempt in begun:
        again.end_attempt(attempt.id, status=200)
    assert again.is_idle(with_scheduled=True)
    again.close()


def test_attempt_that_was_cut_off_runs_again(tmp_path):
    """An attempt that ran when the emulator ended is begun again at the next start."""
    path = tmp_path / "tasks.sqlite3"
    before = make_engine(path)
    before.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    add(before, "a")
    before.begin_ready()
    before.close()

    after = make_engine(path)
    (attempt,) = finish(after)

    assert attempt.number == 1
    cut_off, second = history(after, "a")
    assert "ended" in cut_off["error"]
    assert cut_off["duration_ms"] == 0  # None would say that it still runs.
    assert second["status"] == 200
    after.close()


def test_an_overlap_ends_a_task_of_an_earlier_run(tmp_path):
    """The success of an overlapping delivery counts for a task that the store gave back, too."""
    path = tmp_path / "tasks.sqlite3"
    before = make_engine(path)
    before.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    add(before, "a")
    before.close()

    after = make_engine(path)
    after.faults.add(kind="overlap")
    first, second = after.begin_ready()
    after.end_attempt(second.id, status=200)

    assert after.history.state_of(first.task) == "done"
    after.close()


def test_ids_do_not_come_twice(tmp_path):
    """Made-up task ids and attempt ids go on after a restart, even after a reset."""
    path = tmp_path / "tasks.sqlite3"
    names: list[str] = []
    for _ in range(3):
        engine = make_engine(path)
        if not engine.queues.all():
            engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
        names += [add(engine) for _ in range(3)]
        engine.reset()
        engine.close()

    assert len(set(names)) == 9


def test_store_is_one_emulators_own(tmp_path):
    """A second emulator on the same store is refused: it would deliver everything twice."""
    path = tmp_path / "tasks.sqlite3"
    first = make_engine(path)

    with pytest.raises(StoreInUseError, match=r"tasks\.sqlite3"):
        Store(path)

    first.close()
    Store(path).close()


# --- examples in the docstrings -------------------------------------------


@pytest.mark.parametrize("module", [control, retries, statuses])
def test_docstring_examples(module):
    """The examples in the docstrings are true."""
    results = doctest.testmod(module)

    assert results.attempted > 0
    assert results.failed == 0
