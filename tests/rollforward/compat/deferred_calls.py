"""Functions of an old app that defers: shared by the tests of `deferred`."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import dataclass

from rollforward.compat import deferred
from rollforward.datastore.transactions import transact
from rollforward.runtime.process.current import current_clients
from tests.rollforward.outbox.order_tasks import Order, note

CALLS: Counter[str] = Counter()


@deferred.deferrable
def greet(name: str, day: datetime.date | None = None, *, times: int = 1) -> str:
    """Greet somebody."""
    CALLS[f"{name} {day}"] += times
    return f"Hello, {name}"


@dataclass(frozen=True)
class Letter:
    """The one argument of a function."""

    to: str


@deferred.deferrable(queue="fan-out", path="/tasks/letters/send", max_attempts=2, deadline_s=60)
def send(letter: Letter) -> None:
    CALLS[letter.to] += 1


@deferred.deferrable
def count_down(left: int) -> None:
    """Defer itself, as chains of the original did."""
    CALLS[f"left {left}"] += 1
    if left:
        deferred.defer(count_down, left - 1)


@deferred.deferrable
def refuse(tag: str) -> None:
    CALLS[tag] += 1
    raise deferred.PermanentTaskFailure(f"there is no {tag}")


@deferred.deferrable(max_attempts=2)
def fail_once(tag: str) -> None:
    CALLS[tag] += 1
    if CALLS[tag] < 5:
        raise deferred.SingularTaskFailure(f"{tag} is busy")


@deferred.deferrable(max_attempts=2)
def break_down(tag: str) -> None:
    CALLS[tag] += 1
    raise ZeroDivisionError(tag)


@deferred.deferrable
def step(order: str, what: str) -> None:
    """Note that a step of an order ran."""
    transact(lambda: note(order, what))


STEPS = ("pack", "print", "remind", "mail", "again")


def place(order: str) -> None:
    """Store an order with the calls that belong to it, and defer one more beside it."""

    def body() -> None:
        if Order.get_by_id(order) is not None:
            return
        Order(id=order).put()
        deferred.defer(step, order, "pack", _transactional=True)
        deferred.defer(step, order, what="print", _queue="fan-out")
        deferred.defer(step, order, "remind", _countdown=30, _name=f"remind-{order}")

    transact(body)
    for what in ("mail", "again"):
        try:
            deferred.defer(
                step, order, what, _name=f"{what}-{order}", _eta=current_clients().clock.now()
            )
        except deferred.TaskAlreadyExistsError:
            CALLS["exists"] += 1


FUNCTIONS = (greet, send, count_down, refuse, fail_once, break_down, step)
