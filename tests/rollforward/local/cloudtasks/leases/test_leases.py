"""Pull queues inside: what is kept on disk and in memory of tasks that are leased."""

import sqlite3

import pytest
from google.protobuf import timestamp_pb2

from rollforward.local.cloudtasks.engine.due_heap import DueHeap
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.protocol.leases import TagFilter
from rollforward.local.cloudtasks.server import views
from rollforward.local.cloudtasks.store.records import PullMessage, TaskRecord
from tests.rollforward.local.cloudtasks.engines import NOW, PLACE, QUEUE, make_engine

pytestmark = pytest.mark.fast


def put(engine: Engine, task_id: str, tag: str = "") -> str:
    """Create a task for a lease and return its name."""
    task = messages.Task(name=f"{QUEUE}/tasks/{task_id}")
    return engine.tasks.create(QUEUE, task, pull=PullMessage(task_id.encode(), tag)).name


def lease(engine: Engine, tag: str | None = None, limit: int = 1000) -> list[TaskRecord]:
    """Lease tasks for a minute."""
    tags, view = TagFilter(tag), messages.BASIC
    return engine.leases.lease(QUEUE, limit, 60, tags, view, lambda task, _: task)


def pulling(path=None) -> Engine:
    """Return an engine with one pull queue."""
    engine = make_engine(path)
    engine.queues.create(PLACE.parent, messages.Queue(name=QUEUE), is_pull=True)
    return engine


@pytest.fixture
def engine():
    """An engine with one pull queue, in memory."""
    made = pulling()
    yield made
    made.close()


def test_leases_survive_a_restart(tmp_path):
    """A worker acknowledges after the restart what it leased before it."""
    path = tmp_path / "tasks.sqlite3"
    before = pulling(path)
    put(before, "leased", "a")
    put(before, "waiting", "b")
    (leased,) = lease(before, "a")
    before.close()

    after = make_engine(path)

    assert after.queues.is_pull(QUEUE)
    assert [task.pull for task in lease(after)] == [PullMessage(b"waiting", "b")]
    after.leases.acknowledge(leased.name, leased.schedule_at)
    assert after.counts()[QUEUE] == {"running": 1, "done": 1}
    after.reset()
    assert after.queues.is_pull(QUEUE)
    after.close()


def test_the_proof_of_a_lease_at_any_fraction_of_a_second(engine):
    """The schedule time that a message carries is that of the lease, however it is rounded."""
    task_name, message = put(engine, "one"), timestamp_pb2.Timestamp()
    (task,) = lease(engine)
    for _ in range(300):
        engine.clock.advance(0.123_456_7)
        messages.set_seconds(message, task.schedule_at)
        engine.leases.renew(task_name, messages.seconds_of(message), 60)
    messages.set_seconds(message, task.schedule_at)
    engine.leases.acknowledge(task_name, messages.seconds_of(message))

    assert engine.counts()[QUEUE] == {"done": 1}


def test_a_file_of_an_older_version(tmp_path):
    """It gains the columns that it lacks, and its queues send as before."""
    path = tmp_path / "tasks.sqlite3"
    engine = make_engine(path)
    engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    task = messages.Task()
    task.http_request.url = "http://handler.invalid/ok"
    engine.tasks.create(QUEUE, task)
    engine.close()
    with sqlite3.connect(path) as file:
        for table, column in (("queues", "is_pull"), ("tasks", "tag"), ("specs", "payload")):
            file.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    file.close()

    after = make_engine(path)

    assert not after.queues.is_pull(QUEUE)
    assert [attempt.task.pull for attempt in after.begin_ready()] == [None]
    after.close()


def test_what_pages_show_of_a_pull_task(engine):
    """Its target is `pull`, its tag stands for a path, and its payload for a body."""
    name = put(engine, "one", "a")
    shown = views.task_with_attempts_json(engine, name)

    assert (shown["target"], shown["path"], shown["state"]) == ("pull", "a", "queued")
    assert shown["request"]["body"]["text"] == "one"
    assert [task.name for task in engine.history.holding("one", 9)[0]] == [name]
    (task,) = lease(engine)
    assert engine.history.state_of(task) == "running"
    engine.tasks.retry(name)
    assert len(lease(engine)) == 1
    engine.leases.acknowledge(name, task.schedule_at)
    with pytest.raises(Refused, match="can only be leased"):
        engine.tasks.retry(name)
    with pytest.raises(Refused, match="can only be leased"):
        engine.attempts.request_of(name)
    assert engine.due() == []


def test_tags_leave_nothing_behind(engine):
    """A queue forgets a tag with the last task that has it, leased by its tag or not."""
    for number in range(50):
        put(engine, f"t{number}", f"tag{number}")
    leased = lease(engine, "tag7") + lease(engine)
    (queue,) = engine.queues.all()

    assert len(leased) == 50
    for task in leased:
        engine.leases.acknowledge(task.name, task.schedule_at)
    assert queue._heaps_of_tags == {}


def test_a_heap_whose_entries_are_void_stays_small():
    """Renewals behind a task that nobody leases leave no more than as many entries again."""
    heap = DueHeap()

    def push(task: TaskRecord, due_at: float) -> None:
        task.due_at = due_at
        task.entry = (due_at, task.sequence, int(due_at), task)
        heap.push(task.entry)

    first, renewed = (
        TaskRecord(number, "", "", "", False, False, b"", NOW, NOW, NOW) for number in (1, 2)
    )
    push(first, NOW)
    for second in range(1000):
        push(renewed, NOW + second)

    assert len(heap) < 100
    assert heap.pop_due(NOW) is first
    assert heap.pop_due(NOW + 998) is None
    assert heap.pop_due(NOW + 999) is renewed
    assert heap.head() is None
