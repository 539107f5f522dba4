"""Arguments beyond a task's size, in rows: the task carries a reference to them.

The rows are written before the task is created, or in the commit that enqueues it. A delivery reads
them. When the task is done, its chunks are deleted; one small row stays, so that a delivery that
comes twice finds that the task was done. A dead task holds its rows until it is replayed or
deleted.

Lost on failure: nothing. Rows whose task was never created expire after 32 days, as does the small
row.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.batched import batched
from rollforward.datastore.expiry import expiry
from rollforward.datastore.transactions import is_in_transaction, transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.messages import Message
from rollforward.tasks.errors import ArgumentsGoneError, BadArgumentsError, EndedError
from rollforward.tasks.stored.entities import ArgumentsChunk, StoredArguments, chunk_key, stored_key
from rollforward.tasks.stored.envelope import Envelope, split_envelope
from rollforward.tasks.stored.names import hashed_name

log = logging.getLogger(__name__)

CHUNK_BYTES = 1_000_000  # An entity takes 1 MiB.
CHUNKS_PER_COMMIT = 4
# A task is kept for 31 days at most.
LIFE = datetime.timedelta(days=32)


def with_large_arguments(clients: Clients, message: Message, *, most_bytes: int) -> Message:
    """Return a message that fits into a task; write the rows of its arguments if they do not.

    Raises:
        BadArgumentsError: the call is in a transaction, but creates its task at once.
    """
    if len(message.body) <= most_bytes:
        return message
    if is_in_transaction():
        raise BadArgumentsError(
            f"{message.path}: arguments of {len(message.body)} bytes are stored in rows, which "
            "this transaction would commit after the task: write rf.enqueue(task, args)"
        )
    stored_id = _id_of(message, clients.new_id())
    args, rows = _rows(
        stored_id, split_envelope(message.body), _expires_at(clients, stored_id, message.at)
    )
    rows[0].put()  # First: it leads the sweep to the others.
    for part in batched(rows[1:], CHUNKS_PER_COMMIT):
        ndb.put_multi(part)
    return replace(message, body=args.body)


def store_in_transaction(
    clients: Clients, message: Message, owner: str, *, expires: bool = True
) -> Message:
    """Return a message that refers to its arguments, and write those in this transaction.

    Args:
        owner: The same each time the body runs; for a message without a name.
        expires: Whether they go after 32 days; False: when the task ends.
    """
    stored_id = _id_of(message, owner)
    until = _expires_at(clients, stored_id, message.at) if expires else None
    args, rows = _rows(stored_id, split_envelope(message.body), until)
    ndb.put_multi(rows)
    return replace(message, body=args.body)


def load(envelope: Envelope) -> bytes:
    """Return the arguments of a delivery, as JSON.

    Raises:
        EndedError: the task is done.
        ArgumentsGoneError: the rows do not exist.
        google.api_core.exceptions.GoogleAPICallError: they could not be read.
    """
    if envelope.args is not None:
        return envelope.args
    key = stored_key(envelope.stored)
    keys = [chunk_key(envelope.stored, number) for number in range(envelope.chunks)]
    head, chunks = key.get(), ndb.get_multi(keys)
    if head is not None and not head.done and None in chunks:
        head = key.get()  # It may have been done since.
    if head is not None and head.done:
        raise EndedError(f"the task of the arguments {envelope.stored} is done")
    if head is None or None in chunks:
        raise ArgumentsGoneError(f"the rows of the arguments {envelope.stored} are gone")
    return b"".join(chunk.data for chunk in chunks)


def finish(clients: Clients, body: bytes) -> None:
    """Delete the chunks of a task that is done; if that fails they expire."""
    stored_id = envelope_of(body).stored
    if not stored_id:
        return
    try:
        transact(lambda: _finish(clients, stored_id))
    except rpc_errors.GoogleAPIError as error:
        log.warning("the arguments %s are not deleted yet: %s", stored_id, error)


def finish_in_transaction(clients: Clients, body: bytes) -> None:
    """Delete the chunks of a task, in the transaction that deletes the task's own row."""
    if stored_id := envelope_of(body).stored:
        _finish(clients, stored_id)


def extend(clients: Clients, body: bytes, due: datetime.datetime) -> None:
    """Keep the rows of a task that was put off until some time.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: it is unknown whether they are kept.
    """
    if stored_id := envelope_of(body).stored:
        transact(lambda: _expire(stored_id, _expires_at(clients, stored_id, due)))


def keep(clients: Clients, body: bytes) -> None:
    """Keep the rows of a task until it ends; if that fails they go after 32 days."""
    if not (stored_id := envelope_of(body).stored):
        return
    try:
        transact(lambda: _expire(stored_id, None))
    except rpc_errors.GoogleAPIError as error:
        log.warning("the arguments %s are kept for 32 days alone: %s", stored_id, error)


def hold(body: bytes, owner: str, most_bytes: int) -> bytes:
    """Return the body that a dead task keeps, in the transaction that writes it.

    Its rows do not expire from now on. A large body is put into rows.
    """
    if stored_id := envelope_of(body).stored:
        _expire(stored_id, None)
        return body
    if len(body) <= most_bytes:
        return body
    args, rows = _rows(hashed_name("arguments", owner), split_envelope(body), None)
    ndb.put_multi(rows)
    return args.body


def release(clients: Clients, body: bytes) -> None:
    """Let the rows of a dead task expire, in the transaction that replays or deletes it."""
    if stored_id := envelope_of(body).stored:
        _expire(stored_id, _expires_at(clients, stored_id, None))


def envelope_of(body: bytes) -> Envelope:
    """Return the parts of a body; one of another form has no rows."""
    try:
        return split_envelope(body)
    except BadArgumentsError:
        return Envelope(body)


def _id_of(message: Message, owner: str) -> str:
    """Return the id of a message's arguments: of its name, so that a repeated call has the same."""
    digest = hashlib.sha256(message.body).hexdigest()
    return hashed_name("arguments", message.path, message.name or owner, digest)


def _rows(
    stored_id: str, envelope: Envelope, expires: str | None
) -> tuple[Envelope, Sequence[ndb.Model]]:
    """Return the reference to some arguments and their rows, the head first."""
    args = envelope.args or b""
    parts = [args[i : i + CHUNK_BYTES] for i in range(0, len(args), CHUNK_BYTES)]
    head = StoredArguments(
        key=stored_key(stored_id), chunks=len(parts), size=len(args), expires=expires
    )
    chunks = [
        ArgumentsChunk(key=chunk_key(stored_id, number), data=part)
        for number, part in enumerate(parts)
    ]
    return replace(envelope, args=None, stored=stored_id, chunks=len(parts)), [head, *chunks]


def _expires_at(clients: Clients, stored_id: str, due: datetime.datetime | None) -> str:
    now_utc = clients.clock.now()
    return expiry(stored_id, naive_utc(max(due or now_utc, now_utc) + LIFE))


def _expire(stored_id: str, expires: str | None) -> None:
    """Set when some rows expire, unless their task is done."""
    head = stored_key(stored_id).get()
    if head is not None and not head.done and head.expires != expires:
        head.expires = expires
        head.put()


def _finish(clients: Clients, stored_id: str) -> None:
    head = stored_key(stored_id).get()
    if head is None or head.done:
        return
    head.done = True
    head.expires = head.expires or _expires_at(clients, stored_id, None)
    head.put()
    ndb.delete_multi(head.chunk_keys)
