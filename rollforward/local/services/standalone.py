"""The backing services as context managers, for tests.

Each call starts a service of its own on free ports, and keeps everything in memory. No process is
left behind, even if the tests are killed. Services that the environment names
(DATASTORE_EMULATOR_HOST and the like) are ignored here on purpose: tests must not write into a
running stack.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rollforward.local.errors import ServiceMissingError
from rollforward.local.services.datastore import DatastoreEmulator
from rollforward.local.services.mail import KEPT_MESSAGES, MailServer, MailStore
from rollforward.local.services.memcached import Memcached


@contextmanager
def datastore_emulator(kind: str = "datastore") -> Iterator[str]:
    """Run an emulator and give its host:port, for DATASTORE_EMULATOR_HOST.

    Args:
        kind: "datastore" (optimistic) or "firestore" (locking).

    Raises:
        ServiceMissingError: it is not installed here; says how to get it.
        ServiceFailedError: it did not start.
    """
    emulator = DatastoreEmulator(kind)
    emulator.start()
    try:
        yield emulator.address
    finally:
        emulator.stop()


@contextmanager
def memcached() -> Iterator[str | None]:
    """Run a memcached and give its host:port, or None where there is none to be had."""
    server = Memcached()
    try:
        server.start()
    except ServiceMissingError:
        yield None
        return
    try:
        yield server.address
    finally:
        server.stop()


@contextmanager
def mail_server(*, seed: int | None = None, limit: int = KEPT_MESSAGES) -> Iterator[MailServer]:
    """Run a mail server and give it: .address .messages() .clear() .set_faults().

    Args:
        seed: Makes the choice of 451 answers repeatable.
        limit: The oldest messages beyond this many are dropped.
    """
    server = MailServer(store=MailStore(limit=limit), seed=seed)
    server.start()
    try:
        yield server
    finally:
        server.stop()
