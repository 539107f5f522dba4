"""The state machine on its own: a test is the dispatcher, in whatever order it likes."""

import doctest
import random

import pytest

from rollforward.local.cloudtasks.delivery import retries, statuses
from rollforward.local.cloudtasks.engine import attempts
from rollforward.local.cloudtasks.protocol import errors, messages, names
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.server import callers
from rollforward.local.cloudtasks.server.rest import routes
from rollforward.local.cloudtasks.store.records import DUPLICATE, FORCED, OVERLAP
from tests.rollforward.local.cloudtasks.engines import (
    DAY_S,
    NOW,
    PLACE,
    QUEUE,
    add,
    finish,
    ids,
    make_ticking_engine,
)

# --- a driver of one's own -------------------------------------------------


def test_due_deliveries_can_be_taken_in_any_order(engine):
    """A driver picks from due() what it likes, and rates do not hold it back."""
    for task_id in ("a", "b", "c"):
        add(engine, task_id)

    due = engine.due()
    last = engine.begin_attempt(due[-1].task_name)

    assert [d.task_name.rpartition("/")[2] for d in due] == ["a", "b", "c"]
    assert ids([last]) == ["c"]
    assert [d.task_name.rpartition("/")[2] for d in engine.due()] == ["a", "b"]


def test_a_task_without_a_request_keeps_no_other_from_going(engine, monkeypatch, caplog):
    """What begins beside it is sent; it waits itself, and can be deleted."""
    build = attempts.build_request

    def build_or_fail(task, *others):
        if task.name.endswith("/odd"):
            raise ValueError("planted")
        return build(task, *others)

    monkeypatch.setattr(attempts, "build_request", build_or_fail)
    for task_id in ("a", "odd", "b"):
        add(engine, task_id)

    assert ids(engine.begin_ready()) == ["a", "b"]
    assert engine.begin_ready() == []
    assert f"A task of {QUEUE} cannot be sent" in caplog.text
    engine.tasks.delete(f"{QUEUE}/tasks/odd")


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


def test_a_driver_takes_no_more_than_it_asks_for(engine):
    """The rest of each queue is ready for the next call."""
    for number in range(5):
        add(engine, f"t{number}")

    taken = [ids(engine.begin_ready(limit=2)) for _ in range(4)]

    assert taken == [["t0", "t1"], ["t2", "t3"], ["t4"], []]


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


# --- names -----------------------------------------------------------------


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


# --- examples in the docstrings --------------------------------------------


@pytest.mark.parametrize("module", [callers, errors, names, routes, retries, statuses])
def test_docstring_examples(module):
    """The examples in the docstrings are true."""
    results = doctest.testmod(module)

    assert results.attempted > 0
    assert results.failed == 0
