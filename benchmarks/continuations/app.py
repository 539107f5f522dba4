"""The measured app: one fan-out done in three ways.

pages    a continuation: 100 items a task, receipts packed into the page's row
items    one task an item, each with a receipt of its own: the naive design, done correctly
request  one long request for all items, a receipt each

Each runs with an empty effect, which leaves the cost of the framework, and with an effect that
sends a mail to a relay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import EmailMessage

from flask import Flask
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from pipelines.invitations.mail import Mailer
from rollforward.continuations import job
from rollforward.continuations.sources import EntitySource
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.tasks import Task

NOTHING, MAIL = "nothing", "mail"
EFFECTS = (NOTHING, MAIL)


class Addressee(ndb.Model):
    """A recipient of a mail."""

    address = ndb.TextProperty(required=True)


class Receipt(ndb.Model):
    """Proof of one item, for the designs that keep one each."""

    done = ndb.BooleanProperty(indexed=False, default=True)


@dataclass(frozen=True)
class Walk:
    """One run over one group of addressees."""

    run_id: str
    group: str
    effect: str


@dataclass(frozen=True)
class One:
    """One item of a walk."""

    walk: Walk
    name: str


def addressees(walk: Walk) -> EntitySource:
    """Return the walk's items."""
    return EntitySource(Addressee, key_prefix=f"{walk.group}:")


@contextlib.contextmanager
def open_effect(clients: Clients, walk: Walk) -> Iterator[Callable[[Addressee], None]]:
    """Open the resources of the effect, once per page or once per task."""
    if walk.effect == NOTHING:
        yield lambda item: None
        return
    mailer = clients.service(Mailer)
    with mailer.connect() as line:

        def send(item: Addressee) -> None:
            mail = EmailMessage()
            mail["From"], mail["To"] = mailer.sender, item.address
            mail["Subject"] = "News"
            mail.set_content("Hello\n")
            line.send(mail)

        yield send


PAGES = job("bench", queue="bench", source=addressees, effect="side_effect")(open_effect)


def work_item(clients: Clients, one: One) -> None:
    """Process one item, once."""
    receipt = ndb.Key(Receipt, f"{one.walk.run_id}:{one.name}")
    item, done = ndb.get_multi([ndb.Key(Addressee, one.name), receipt])
    if done is not None or item is None:
        return
    with open_effect(clients, one.walk) as act:
        act(item)
    Receipt(key=receipt).put()


ITEM = Task("/tasks/bench/item", "bench", One, work_item)


def spread_items(clients: Clients, walk: Walk) -> None:
    """Create one task for each item, 100 a call."""
    names = [item.key.id() for item in _all_of(walk)]
    ITEM.enqueue_many(
        clients,
        [One(walk, name) for name in names],
        names=[(walk.run_id, name) for name in names],
    )


def work_request(clients: Clients, walk: Walk) -> None:
    """Process all items in one request."""
    with open_effect(clients, walk) as act:
        for item in _all_of(walk):
            receipt = ndb.Key(Receipt, f"{walk.run_id}:{item.key.id()}")
            if receipt.get() is None:
                act(item)
                Receipt(key=receipt).put()


def _all_of(walk: Walk) -> list[Addressee]:
    low, high = ndb.Key(Addressee, f"{walk.group}:"), ndb.Key(Addressee, f"{walk.group};")
    return Addressee.query(Addressee._key > low, Addressee._key < high).fetch()  # type: ignore[no-any-return]


ITEMS = Task("/tasks/bench/items", "bench", Walk, spread_items)
REQUEST = Task("/tasks/bench/request", "bench", Walk, work_request)


def serve() -> Flask:
    """Return the app."""
    app, _ = app_for(Registry(PAGES, ITEM, ITEMS, REQUEST))
    return app
