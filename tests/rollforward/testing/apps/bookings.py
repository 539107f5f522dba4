"""Bookings of seats: an app with a bug in each of four ways to book, and a fifth way without.

`naive` checks and then puts, outside of a transaction. `forgetful` creates its task after the
commit. `impatient` charges without a key. `careless` adds to a total in a task without a guard.
`sound` does all of it in a transaction, with the outbox. `frank` has a service's status as its own.
"""

from __future__ import annotations

from typing import Protocol

from flask import Flask, redirect, request
from flask.typing import ResponseReturnValue
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import ndb

import rollforward as rf

BY_GUEST = rf.Lane("booking-guests", order=True)
SHARED = rf.Lane("booking-shared")


class Payments(Protocol):
    """A payment provider."""

    def charge(self, cents: int, key: str | None = None) -> None: ...


class Booking(ndb.Model):
    seat = ndb.StringProperty()
    guest = ndb.StringProperty()
    is_confirmed = ndb.BooleanProperty(indexed=False, default=False)


class Total(ndb.Model):
    seats = ndb.IntegerProperty(indexed=False, default=0)


@rf.task
def confirm(booking: str) -> None:
    def body() -> None:
        row = Booking.get_by_id(booking)
        row.is_confirmed = True
        row.put()

    rf.transact(body)


@rf.task
def add_up(seats: int) -> None:
    total = Total.get_by_id("all") or Total(id="all")
    total.seats += seats
    total.put()


@rf.task(max_attempts=3)
def fail(reason: str) -> None:
    raise ValueError(reason)


@rf.task(max_attempts=1)
def fail_once(reason: str) -> None:
    raise ValueError(reason)


@rf.task
def repeat(count: int) -> None:
    repeat.enqueue(count + 1)


@rf.task
def remind(guest: str) -> None:
    Total(id=guest).put()


def make(payments: Payments | None = None) -> Flask:
    """Return the app, declared and not opened."""
    app = Flask(__name__)

    @app.post("/naive")
    def naive() -> str:
        seat, guest = request.form["seat"], request.form["guest"]
        if Booking.query(Booking.seat == seat).get() is None:
            Booking(seat=seat, guest=guest).put()
        return "booked"

    @app.post("/forgetful")
    def forgetful() -> str:
        seat = request.form["seat"]

        def body() -> bool:
            if Booking.get_by_id(seat) is not None:
                return False
            Booking(id=seat, seat=seat, guest=request.form["guest"]).put()
            return True

        if rf.transact(body):
            confirm.enqueue(seat)
        return "booked"

    @app.post("/impatient")
    def impatient() -> str:
        rf.clients().service(Payments).charge(2_000)
        Booking.get_or_insert(request.form["seat"], seat=request.form["seat"])
        return "booked"

    @app.post("/careless")
    def careless() -> str:
        add_up.enqueue(add_up.bind(1), name=["seat", request.form["seat"]])
        return "booked"

    @app.post("/frank")
    def frank() -> ResponseReturnValue:
        try:
            Booking(id=request.form["seat"]).put()
        except GoogleAPICallError as error:
            return str(error), error.code or 500
        return "booked"

    @app.post("/sound")
    def sound() -> str:
        seat, guest = request.form["seat"], request.form["guest"]

        def body() -> None:
            if Booking.get_by_id(seat) is None:
                Booking(id=seat, seat=seat, guest=guest).put()
                rf.enqueue(confirm, confirm.bind(seat))

        rf.transact(body)
        return "booked"

    @app.get("/seats/<seat>")
    def show(seat: str) -> str:
        return f"{seat} is {'taken' if Booking.get_by_id(seat) else 'free'}"

    @app.post("/redirecting")
    def redirecting() -> ResponseReturnValue:
        sound()
        return redirect(f"/seats/{request.form['seat']}", 303)

    services = {Payments: payments} if payments is not None else {}
    parts = (confirm, add_up, fail, fail_once, repeat, remind, BY_GUEST, SHARED)
    return rf.serve(app, *parts, services=services)


serve = make()
