"""A saga as a flow: a book is reserved, charged and shipped, or all of it is undone."""

from __future__ import annotations

from typing import Protocol

from google.cloud import ndb

from rollforward.flows import Steps, flow
from rollforward.tasks import Reject


# howto: from here
class Bookshelf(ndb.Model):
    copies = ndb.IntegerProperty(indexed=False, default=0)


class Payments(Protocol):
    def charge(self, cents: int, key: str) -> str: ...
    def refund(self, key: str) -> None: ...


class Couriers(Protocol):
    def collect(self, title: str, key: str) -> str: ...


def reserve(title: str) -> None:
    shelf = Bookshelf.get_by_id(title)
    if shelf is None or shelf.copies < 1:
        raise Reject(f"{title} is sold out")
    shelf.copies -= 1
    shelf.put()


def put_back(title: str) -> None:
    shelf = Bookshelf.get_by_id(title)
    shelf.copies += 1
    shelf.put()


@flow("book-orders")
def book_order(step: Steps, title: str, cents: int) -> str:
    payments = step.clients.service(Payments)
    couriers = step.clients.service(Couriers)

    step.commit("reserve", reserve, title)
    step.undo_commit("put back", put_back, title)

    key = step.key("charge")
    step.undo("refund", payments.refund, key)  # Before the charge, which may fail after its effect.
    step.outside("charge", payments.charge, cents, key)

    return step.outside("ship", couriers.collect, title, step.key("ship"))


# howto: to here
