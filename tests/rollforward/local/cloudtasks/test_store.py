"""What the engine keeps on disk is there after a restart, or after Datastore went back."""

import sqlite3

import pytest

from rollforward.local.cloudtasks.delivery.app_engine import AppEngineApp
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.protocol.names import Place
from rollforward.local.cloudtasks.store.database import StoreInUseError
from rollforward.local.cloudtasks.store.store import Store
from tests.rollforward.local.cloudtasks.engines import (
    PLACE,
    QUEUE,
    add,
    finish,
    history,
    ids,
    make_engine,
)

LARGE = {"body": b"x" * 90_000}


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
    key_id = before.tokens.key_id
    before.close()

    after = make_engine(path)

    assert after.clock.offset_s == 100
    assert after.queues.get(QUEUE).state == messages.PAUSED
    assert after.tokens.key_id == key_id
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


def test_going_back_to_nothing_frees_all_names_of_a_project_and_of_no_other(tmp_path):
    """As Datastore does that was killed before its first save: a project has a save of its own."""
    path = tmp_path / "tasks.sqlite3"
    engine = make_engine(path)
    engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    add(engine, "done")
    finish(engine)
    add(engine, "waits")
    engine.close()

    elsewhere = Place("demo-other", "us-central1")
    other = Engine(Store(path), elsewhere, AppEngineApp("http://app.invalid"), in_memory=True)
    assert other.tasks.go_back(0.0) == 0
    other.close()
    again = make_engine(path)
    for task_id in ("done", "waits"):
        with pytest.raises(Refused, match="already exists"):
            add(again, task_id)
    assert again.tasks.go_back(0.0) == 1
    for task_id in ("done", "waits"):
        add(again, task_id)
    assert sorted(ids(again.begin_ready())) == ["done", "waits"]
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


def test_a_task_that_a_fault_delays_is_late_after_a_restart_too(tmp_path):
    """By as much as the fault said, and once."""
    path = tmp_path / "tasks.sqlite3"
    before = make_engine(path)
    before.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    before.faults.add(kind="delay", param=30)
    add(before, "a")
    assert before.begin_ready() == []
    before.close()

    after = make_engine(path)
    after.advance(29)
    assert after.begin_ready() == []
    after.advance(1)
    assert ids(after.begin_ready()) == ["a"]
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


def test_an_ended_task_is_known_by_the_id_that_was_made_for_it(tmp_path):
    """No index has it; a younger task of the same name, which a caller chose, goes before it."""
    path = tmp_path / "tasks.sqlite3"
    before = make_engine(path)
    before.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    name, other = add(before), add(before)
    finish(before)
    before.close()

    after = make_engine(path)
    assert after.history.of_task(name)[0].name == name
    with pytest.raises(Refused, match="existed recently"):
        after.get_task(name)
    for task_id in ("1", "x", str(2**64), "9" * 400):
        with pytest.raises(Refused):
            after.history.of_task(f"{QUEUE}/tasks/{task_id}")
    younger = add(after, other.rpartition("/")[2])
    assert younger == other
    assert after.history.of_task(other)[0].is_named
    after.close()


def test_store_is_one_emulators_own(tmp_path):
    """A second emulator on the same store is refused: it would deliver everything twice."""
    path = tmp_path / "tasks.sqlite3"
    first = make_engine(path)

    with pytest.raises(StoreInUseError, match=r"tasks\.sqlite3"):
        Store(path)

    first.close()
    Store(path).close()


@pytest.fixture
def full(tmp_path):
    """An engine with a task, and a disk that has no room for more."""
    engine = make_engine(tmp_path / "tasks.sqlite3")
    engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    add(engine, "before")
    fill(engine)
    yield engine
    engine.close()


def fill(engine):
    """Let the file grow no more, as on a full disk."""
    pages = engine._state.store._db.value("PRAGMA page_count")
    engine._state.store._db.value(f"PRAGMA max_page_count = {pages}")


def make_room(engine):
    """Let the file grow again."""
    engine._state.store._db.value("PRAGMA max_page_count = 1000000")


def test_a_full_disk_refuses_calls_until_there_is_room(full, tmp_path):
    """A refused task is not there: not delivered, its name free; and no restart is needed."""
    with pytest.raises(sqlite3.OperationalError):
        add(full, "refused", http_request=LARGE)
    assert [*full._state.queues[QUEUE].tasks] == [f"{QUEUE}/tasks/before"]

    make_room(full)
    add(full, "refused")

    assert sorted(ids(finish(full))) == ["before", "refused"]
    full.close()
    again = make_engine(tmp_path / "tasks.sqlite3")
    assert again.begin_ready() == []
    again.close()


def test_calls_together_on_a_full_disk_are_all_refused(full, tmp_path):
    """What comes after the write that failed is neither kept by itself nor acknowledged."""

    def call_together():
        with full.together():
            add(full, "earlier")
            for task_id in ("large", "later"):
                with pytest.raises(sqlite3.OperationalError):
                    add(full, task_id, http_request=LARGE if task_id == "large" else {})

    with pytest.raises(sqlite3.OperationalError):
        call_together()
    assert ids(full.begin_ready()) == ["before"]

    make_room(full)
    add(full, "after")
    full.close()
    again = make_engine(tmp_path / "tasks.sqlite3")
    assert sorted(ids(again.begin_ready())) == ["after", "before"]
    again.close()


def test_what_runs_while_the_disk_is_full_runs_again(full):
    """Its end is not known: the task is delivered once more."""
    make_room(full)
    (attempt,) = full.begin_ready()
    fill(full)
    with pytest.raises(sqlite3.OperationalError):
        add(full, "large", http_request=LARGE)
    make_room(full)

    assert full.end_attempt(attempt.id, status=200) is None
    assert ids(finish(full)) == ["before"]


@pytest.mark.parametrize("digits", [20, 21, 4301])
def test_an_id_of_many_digits_is_unknown(digits):
    """The largest number that Python reads has 4,300."""
    engine = make_engine()
    engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    with pytest.raises(Refused, match="not found"):
        engine.history.of_task(f"{QUEUE}/tasks/{'9' * digits}")
    engine.close()
