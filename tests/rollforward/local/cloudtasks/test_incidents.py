"""What the service tells of deliveries that were struck, repeated or failed."""

import json

import pytest

from rollforward.local.cloudtasks.engine.incidents import MAX_MARKS, MarkError
from rollforward.local.services.mail import MailStore
from tests.rollforward.local.cloudtasks.engines import NOW, QUEUE, add, finish, make_ticking_engine


def told(engine, **chosen):
    return engine.incidents.to_json(**chosen)["deliveries"]


def test_a_delivery_that_went_well_is_no_incident(engine):
    """Nothing is told of it, running or ended."""
    add(engine, "a")
    (attempt,) = engine.begin_ready()
    assert told(engine) == []

    engine.end_attempt(attempt.id, status=204)

    assert told(engine) == []


def test_a_struck_delivery_and_what_became_of_its_task(engine):
    """Its faults, its end, and that the task is done, once it is."""
    engine.faults.add(kind="error", max_count=1)
    add(engine, "a", path="/tasks/x")
    finish(engine, 500)
    (struck,) = told(engine)
    assert (struck["task"], struck["path"], struck["faults"]) == ("a", "/tasks/x", ["error"])
    assert (struck["status"], struck["task_state"]) == (500, "live")

    engine.advance(10)
    finish(engine)

    (healed,) = told(engine)
    assert (healed["task_state"], healed["task_ended_at"]) == ("done", NOW + 10)


def test_a_delivery_ends_after_it_began():
    """By as much as it took."""
    engine, real = make_ticking_engine()
    add(engine, "a")
    (attempt,) = engine.begin_ready()
    real.advance(3)
    engine.end_attempt(attempt.id, status=500)

    (failed,) = told(engine)

    assert (failed["at"], failed["ended_at"]) == (NOW, NOW + 3)


def test_a_failure_without_a_fault_comes_with_its_reason(engine):
    """A connection that broke, as when a worker is killed, and what the app says of a 429."""
    add(engine, "a")
    add(engine, "b")
    first, second = engine.begin_ready()
    engine.end_attempt(first.id, error="UNAVAILABLE: Server disconnected")
    engine.end_attempt(second.id, status=429, body=json.dumps({"detail": "it waits"}).encode())

    lost, refused = told(engine)

    assert (lost["status"], lost["error"]) == (None, "UNAVAILABLE: Server disconnected")
    assert (refused["status"], refused["reason"]) == (429, "it waits")


def test_incidents_are_found_by_time_path_and_body(engine):
    """Each choice alone leaves out what it should."""
    add(engine, "a", path="/tasks/x", http_request={"body": b'{"run": "r1"}'})
    finish(engine, 500)
    assert told(engine, since=NOW, until=NOW, path="/tasks/", text='"r1"')[0]["body"] == {
        "run": "r1"
    }

    assert told(engine, since=NOW + 1) == []
    assert told(engine, until=NOW - 1) == []
    assert told(engine, path="/tasks/y") == []
    assert told(engine, text="r2") == []


def test_a_slowed_queue_says_until_when(engine):
    """After answers of 503 the whole rate is back at the time that was said, and not before."""
    add(engine, "a")
    finish(engine, 503)
    ((slowed),) = engine.incidents.to_json()["slowed"]
    assert (slowed["queue"], slowed["speed_factor"]) == (QUEUE.rpartition("/")[2], 0.5)

    engine.advance(slowed["full_speed_at"] - NOW - 0.01)
    assert engine.incidents.to_json()["slowed"]
    engine.advance(0.01)

    assert engine.incidents.to_json()["slowed"] == []


def test_marks_are_kept_until_a_reset_and_are_bounded(engine):
    """Kills and flushes; other kinds are refused."""
    engine.incidents.mark("kill", "4711")
    with pytest.raises(MarkError):
        engine.incidents.mark("flood")
    assert engine.incidents.to_json()["marks"] == [{"at": NOW, "kind": "kill", "text": "4711"}]
    for _ in range(MAX_MARKS + 1):
        engine.incidents.mark("flush")
    assert len(engine.incidents.to_json()["marks"]) == MAX_MARKS

    engine.reset()

    assert engine.incidents.to_json()["marks"] == []


def test_a_lost_response_is_that_of_a_handler_that_ran(engine):
    """Under both rules a delivery is answered with an error, or runs and loses its response."""
    engine.faults.add(kind="error", max_count=1)
    engine.faults.add(kind="lose_response", max_count=1)
    add(engine, "a")
    finish(engine, 500)
    engine.advance(10)
    finish(engine)

    assert [each["faults"] for each in told(engine)] == [["error"], ["lose_response"]]


def test_mails_that_came_again_are_counted():
    """A Message-ID that came before is a repeat; mails without one are not."""
    store = MailStore()
    for message_id in ("<a@x>", "<b@x>", "<a@x>", "<a@x>", "", ""):
        head = f"Subject: Party\r\nMessage-ID: {message_id}\r\n" if message_id else "Subject: x\r\n"
        store.add("me@x", ["you@x"], f"{head}\r\nhi".encode())

    assert store.duplicates() == store.duplicates("party") == 2
    assert store.duplicates("other") == store.duplicates(until=1.0) == 0
    store.close()
