"""The fixture's methods: requests, the clock, settle, enqueued, fail."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from flask import (
    Flask,
    Response,
    has_request_context,
    redirect,
    request,
    session,
    stream_with_context,
)
from google.cloud.ndb.exceptions import ContextError

import rollforward as rf
from rollforward.tasks import Unavailable
from rollforward.tasks.errors import UnknownQueueError
from rollforward.testing import NoAppError, NotSettledError, Rollforward, TaskFailedError
from rollforward.testing.client import WorkerDiedError
from rollforward.testing.leftovers import remaining_rows
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import Services
from tests.rollforward.testing.apps import bookings
from tests.rollforward.testing.apps.bookings import Booking, Total
from tests.rollforward.testing.conftest import Till

pytestmark = one_emulator

FORM = {"seat": "A1", "guest": "Ada"}


def test_a_request_books_and_its_task_runs_when_the_app_settles(kit: Rollforward) -> None:
    """Each test sees what the app has stored: a context is open."""
    assert kit.client.post("/sound", data=FORM).text == "booked"
    assert not Booking.get_by_id("A1").is_confirmed

    kit.settle()

    assert Booking.get_by_id("A1").is_confirmed
    assert remaining_rows() == []


def test_waiting_tasks_are_listed_with_typed_arguments(kit: Rollforward) -> None:
    """They compare equal to a bound call, oldest first, later ones too."""
    bookings.remind.enqueue("Ada")
    bookings.remind.enqueue(bookings.remind.bind("Bob"), delay_s=3600)

    waiting = kit.enqueued(bookings.remind)

    assert waiting == [bookings.remind.bind("Ada"), bookings.remind.bind("Bob")]
    assert kit.enqueued(bookings.confirm) == []


def test_tasks_due_in_more_than_thirty_days_are_listed_last(kit: Rollforward) -> None:
    """They wait in rows: alone and by a transaction, the first one first, each until it runs."""
    days = 24 * 3600
    bookings.remind.enqueue(bookings.remind.bind("Cid"), delay_s=80 * days, name=("cid",))
    rf.transact(lambda: rf.enqueue(bookings.remind, bookings.remind.bind("Bob"), delay_s=60 * days))
    bookings.remind.enqueue(bookings.remind.bind("Ada"), delay_s=20 * days)

    guests = [bookings.remind.bind(guest) for guest in ("Ada", "Bob", "Cid")]
    for left in range(3):
        assert kit.enqueued(bookings.remind) == guests[left:]
        kit.advance((20 if left == 0 else 40 if left == 1 else 20) * days)
        kit.sweep()
        kit.settle()
    assert kit.enqueued(bookings.remind) == []


def test_tasks_that_wait_in_lanes_are_listed_and_run(kit: Rollforward) -> None:
    """In their order, added alone and by a transaction, with arguments of any size."""
    large = bookings.confirm.bind("Eve" * 60_000)
    lane, paused = bookings.BY_GUEST("all"), bookings.BY_GUEST("paused")
    paused.pause(kit.clients)
    bookings.remind.enqueue("Ada")
    bookings.remind.enqueue(bookings.remind.bind("Bob"), lane=lane)
    bookings.confirm.enqueue(large, lane=paused)
    rf.transact(lambda: rf.enqueue(bookings.remind, bookings.remind.bind("Zoe"), lane=lane))

    waiting = kit.enqueued(bookings.remind)

    assert waiting == [bookings.remind.bind(guest) for guest in ("Ada", "Bob", "Zoe")]
    kit.settle()
    assert [Total.get_by_id(guest) is None for guest in ("Ada", "Bob", "Zoe")] == [False] * 3
    assert (kit.enqueued(bookings.remind), kit.enqueued(bookings.confirm)) == ([], [large])


def test_a_task_that_raises_in_its_last_attempt_fails_the_test(kit: Rollforward) -> None:
    """It is a dead task at once, and its error is not lost with that: alone and in a lane."""
    lane = bookings.BY_GUEST("ada")
    for options in ({}, {"lane": lane}, {"lane": lane}):
        bookings.fail_once.enqueue(bookings.fail_once.bind("no seats"), **options)
        with pytest.raises(TaskFailedError, match="no seats") as caught:
            kit.settle()
        assert "bookings.py" in str(caught.value)
    bookings.fail_once.enqueue("no seats either")
    kit.settle(retries=True)


@pytest.mark.parametrize("lane", [bookings.BY_GUEST, bookings.SHARED], ids=lambda lane: lane.name)
def test_a_task_in_a_lane_that_raises_fails_the_test(kit: Rollforward, lane: rf.Lane) -> None:
    """Unless the test wants its retries; then it is a dead task."""
    bookings.fail.enqueue(bookings.fail.bind("no seats"), lane=lane("ada"))

    with pytest.raises(TaskFailedError, match=r"/tasks/fail failed with .*no seats"):
        kit.settle()
    with pytest.raises(TaskFailedError):
        kit.settle()
    kit.settle(retries=True)

    assert kit.enqueued(bookings.fail) == []
    assert "DeadTask" in " ".join(remaining_rows())


def test_later_tasks_wait_until_the_clock_is_there(kit: Rollforward) -> None:
    """Within a minute the clock moves along; tasks beyond it wait for `advance`."""
    began = kit.now
    for guest, delay_s in (("soon", 30), ("late", 3600)):
        bookings.remind.enqueue(bookings.remind.bind(guest), delay_s=delay_s)

    kit.settle(within_s=10)
    assert Total.get_by_id("soon") is None
    kit.settle()
    assert (Total.get_by_id("soon") is None, Total.get_by_id("late")) == (False, None)

    kit.advance(3600)
    kit.settle()

    assert Total.get_by_id("late") is not None
    assert kit.now - began >= datetime.timedelta(seconds=3600)


def test_a_task_that_raises_fails_the_test_with_its_traceback(kit: Rollforward) -> None:
    """The text has the task, its arguments and the line of the app."""
    bookings.fail.enqueue("no seats")

    with pytest.raises(TaskFailedError) as caught:
        kit.settle()

    assert str(caught.value).startswith(
        '/tasks/fail failed with the arguments {"reason":"no seats"}: ValueError: no seats\n'
    )
    assert "raise ValueError(reason)" in str(caught.value)


def test_a_task_that_the_app_refuses_fails_the_test(kit: Rollforward) -> None:
    """As by a login before each request: none of its tasks would ever run."""
    kit.app.before_request_funcs.setdefault(None, []).append(lambda: redirect("/login"))
    bookings.remind.enqueue("Ada")

    try:
        with pytest.raises(TaskFailedError, match=r"/tasks/remind failed .* answered 302 FOUND"):
            kit.settle()
    finally:
        kit.app.before_request_funcs[None].pop()


def test_a_task_that_raises_is_retried_when_the_test_wants_it(kit: Rollforward) -> None:
    """After its last attempt it is a dead task, as in production, and the app is at rest."""
    bookings.fail.enqueue("no seats")

    kit.settle(retries=True)

    assert kit.enqueued(bookings.fail) == []
    [dead] = remaining_rows()
    assert "DeadTask" in dead


def test_tasks_that_never_end_are_named(kit: Rollforward) -> None:
    """A task that enqueues itself would keep a test for ever."""
    bookings.repeat.enqueue(1)

    with pytest.raises(NotSettledError, match=r"after 20 deliveries: /tasks/repeat \(1\)"):
        kit.settle(limit=20)


@pytest.mark.parametrize(
    ("fault", "is_stored"), [("error", False), ("reply-lost", True), ("crash-before", False)]
)
def test_the_next_call_of_a_service_fails_as_asked(
    kit: Rollforward, fault: str, is_stored: bool
) -> None:
    """A visitor sees an error page, or a closed connection if the worker died."""
    kit.fail(next="Commit", fault=fault)

    if fault == "crash-before":
        with pytest.raises(WorkerDiedError, match="POST /naive"):
            kit.client.post("/naive", data=FORM)
    else:
        assert kit.client.post("/naive", data=FORM).status_code == 503

    assert (Booking.query().get() is not None) == is_stored
    assert kit.client.post("/naive", data=FORM).status_code == 200


def test_some_calls_in_a_row_fail(kit: Rollforward) -> None:
    """By service, with the code that is asked for; others work."""
    kit.fail(next="tasks", times=2, code="RESOURCE_EXHAUSTED")

    statuses = [kit.client.post("/careless", data=FORM).status_code for _ in range(3)]

    assert statuses == [503, 503, 200]
    assert kit.enqueued(bookings.add_up) == [bookings.add_up.bind(1)]


def test_a_service_of_the_app_fails_too(kit: Rollforward, till: Till) -> None:
    """A provider that took the money, and whose answer was lost."""
    kit.fail(next="Payments.charge", fault="reply-lost")

    assert kit.client.post("/impatient", data=FORM).status_code == 503

    assert till.charges == [2_000]


def test_a_service_may_be_a_function(services: Services) -> None:
    """It is called as in production, and fails as asked."""

    class Charge(Protocol):
        def __call__(self, cents: int) -> str: ...

    kit = Rollforward(bookings.make(), services, {Charge: lambda cents: f"{cents} paid"})
    kit.reset()
    charge = kit.clients.service(Charge)

    assert charge(7) == "7 paid"
    kit.fail(next="Charge.__call__")
    with pytest.raises(Unavailable):
        charge(7)
    kit.close()


def test_a_service_of_the_app_can_be_set_up_by_its_clients(kit: Rollforward, till: Till) -> None:
    """A provider that is set to be out of order is so for its own methods, too."""
    kit.clients.service(bookings.Payments).charges = [7]  # type: ignore[attr-defined]

    assert till.charges == [7]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"next": "datastor"}, "next must be one of datastore, tasks, cache, app, Commit"),
        ({"next": "tasks", "fault": "after"}, "fault must be one of error, reply-lost, crash-be"),
        ({"next": "tasks", "code": "AWAY"}, "code must be one of gRPC.* got 'AWAY'"),
        ({"next": "tasks", "times": 0}, "times 1 or more, got 'UNAVAILABLE' and 0"),
        ({"next": "Payment.charge"}, "such as \"Payments.charge\", got 'Payment.charge'"),
        ({"next": "Payments.chrge"}, "got 'Payments.chrge'"),
        ({"next": "cache.gte"}, "cache.get, .*got 'cache.gte'"),
    ],
)
def test_a_wrong_fault_is_refused(kit: Rollforward, wrong: dict[str, str], said: str) -> None:
    """The text has the right ones; a fault that never comes would let the test pass."""
    with pytest.raises(ValueError, match=said):
        kit.fail(**wrong)  # type: ignore[arg-type]


def test_a_form_gets_a_token_unless_the_test_is_about_it(kit: Rollforward) -> None:
    """The guard itself stays in force."""
    kit.client.csrf = False
    assert kit.client.post("/sound", data=FORM).status_code == 403
    assert kit.client.post("/sound", data={**FORM, "csrf_token": "x"}).status_code == 403

    kit.client.csrf = True
    assert kit.client.post("/sound", data={**FORM, "csrf_token": "x"}).status_code == 403
    assert kit.client.post("/sound", data=FORM).status_code == 200
    assert kit.visitor().post("/sound", json=FORM).status_code == 400


def test_a_redirect_is_followed_also_when_a_worker_dies_on_the_way(kit: Rollforward) -> None:
    """Each hop is a request of its own; a patient visitor repeats the one that failed."""
    page = kit.client.post("/redirecting", data=FORM, follow_redirects=True)
    assert (page.status_code, page.text) == (200, "A1 is taken")

    kit.client.is_patient = True
    kit.fail(next="Lookup", fault="crash-before")
    page = kit.client.get("/seats/B1", follow_redirects=True)
    assert (page.status_code, page.text) == (200, "B1 is free")


def test_large_arguments_are_listed_as_they_were_given(kit: Rollforward) -> None:
    """They are stored in rows, and the task carries their key."""
    bookings.remind.enqueue("x" * 1_200_000)

    [args] = kit.enqueued(bookings.remind)

    assert args == bookings.remind.bind("x" * 1_200_000)


def test_nothing_of_a_test_is_left_for_the_next(kit: Rollforward) -> None:
    """Entities, tasks, cached values, memory, cookies, faults and time are new."""
    kit.client.post("/sound", data=FORM)
    kit.clients.cache.set("x", b"y", 60)
    kit.clients.process_state.get_or_create("owner", list).append(1)
    kit.fail(next="datastore")
    kit.advance(10 * 24 * 3600)
    later = kit.now

    kit.reset()

    assert Booking.query().fetch() == []
    assert kit.enqueued(bookings.confirm) == []
    assert kit.clients.cache.get("x") is None
    assert kit.clients.process_state.get_or_create("owner", list) == []
    assert kit.client.get_cookie("session") is None
    assert later - kit.now > datetime.timedelta(days=9)


def test_the_sweep_and_cron_urls_are_called_as_the_scheduler_does(kit: Rollforward) -> None:
    """With a token, so they work; a visitor is refused."""
    kit.sweep()

    assert kit.cron("/cron/nothing") == 404
    assert kit.client.get("/cron/sweep").status_code == 403


def test_a_schedule_of_each_minute_lets_the_app_settle(services: Services) -> None:
    """Its ticks within a minute run; the next ones wait for the clock, as other later tasks do."""
    ticks: list[datetime.datetime] = []

    @rf.schedules.schedule("* * * * *")
    def count(at: datetime.datetime) -> None:
        ticks.append(at)

    kit = Rollforward(rf.serve(Flask("clock"), count), services)
    kit.reset()
    with kit.clients.context():
        kit.sweep()
        kit.settle()
        assert len(ticks) == 1

        kit.advance(120)
        kit.settle()
        assert len(ticks) == 3
    kit.close()


def test_a_response_in_parts_is_made_as_a_server_has_it_made(services: Services) -> None:
    """Not in the contexts of the test: with its own request, and with no context of Datastore."""
    app = Flask("export")

    def lines(read: Callable[[], str]) -> Iterator[str]:
        yield "seat\n"
        yield read()

    @app.get("/careless")
    def careless() -> Response:
        return Response(lines(lambda: Booking.get_by_id("A1").seat))

    @app.get("/sound")
    def sound() -> Response:
        return Response(stream_with_context(lines(lambda: request.args["seat"])))

    kit = Rollforward(rf.serve(app), services)
    kit.reset()
    with kit.clients.context():
        Booking(id="A1", seat="A1").put()

        assert kit.client.get("/sound?seat=A1").text == "seat\nA1"
        with pytest.raises(ContextError):
            _ = kit.client.get("/careless").text
    kit.close()


def test_a_block_of_the_client_keeps_the_context_of_its_last_request(services: Services) -> None:
    """As Flask's client does: a test looks at the session that a request has left."""
    app = Flask("login")

    @app.get("/login/<user>")
    def login(user: str) -> str:
        session["user"] = user
        return "hello"

    kit = Rollforward(rf.serve(app), services)
    kit.reset()
    with kit.clients.context():
        with kit.client:
            for user in ("Ada", "Bob"):
                assert kit.client.get(f"/login/{user}").text == "hello"
                assert (request.path, session["user"]) == (f"/login/{user}", user)
        assert not has_request_context()
    kit.close()


def test_something_that_is_no_app_is_refused(services: Services) -> None:
    """A Flask app that nobody served has no tasks and no clients."""
    with pytest.raises(NoAppError, match=r"the app that rf\.serve"):
        Rollforward(Flask("x"), services)


def test_a_queue_that_does_not_exist_is_named(services: Services) -> None:
    """The local platform says so at its start, and the kit does so, too."""

    @rf.task(queue="nowhere")
    def lost() -> None: ...

    with pytest.raises(UnknownQueueError, match="'nowhere'"):
        Rollforward(rf.serve(Flask("x"), lost), services)
