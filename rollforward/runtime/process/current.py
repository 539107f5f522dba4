"""Clients of the code that runs now: of a request, a task, or a prompt of `rollforward shell`.

`Clients.context()` sets them. A thread that is started inside has none, as it has no ndb context.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollforward.runtime.clients import Clients

_CURRENT: ContextVar[Clients] = ContextVar("clients")


class NoClientsError(LookupError):
    """No request and no task of an app runs here, and no clients were passed."""


def current_clients() -> Clients:
    """Return the clients of the code that runs now.

    Raises:
        NoClientsError: neither a request nor a task runs here; says what to write.
    """
    try:
        return _CURRENT.get()
    except LookupError:
        raise NoClientsError(
            "there are no clients here, because neither a request nor a task of the app runs in "
            "this thread: pass them first, as in greet.enqueue(clients, ...), or work inside "
            "`with clients.context():`. A thread of your own needs that, too"
        ) from None


@contextmanager
def use_clients(clients: Clients) -> Iterator[None]:
    """Make these the clients of the code inside."""
    token = _CURRENT.set(clients)
    try:
        yield
    finally:
        _CURRENT.reset(token)
