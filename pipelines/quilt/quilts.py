"""Quilts: a task of its own paints each square; the last of them triggers one more.

A quilt is a batch, and each square is a member. Creating it is one commit: its row, its members,
and the task that creates their tasks. A task paints a square by inserting its row, so a second
delivery finds it painted. A quilt of four pieces is a batch of four members, and each becomes a
batch of its squares.

Lost on failure: nothing. A quilt is finished when its batch says so, however its squares look.

Routes: POST /tasks/batches/quilt/paint, /tasks/batches/quilt-pieces/paint,
/tasks/batches/quilt-whole/sew, /tasks/batches/quilt/completed,
/tasks/batches/quilt-whole/completed, /tasks/quilt/finish.
Source: D. Hermes, "Last to cross the finish line", 2012: the quilt of its demo.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from models.quilt import (
    Quilt,
    QuiltPiece,
    QuiltSquare,
    newest_quilts,
    piece_key,
    quilt_key,
    rows_of,
    square_key,
)
from pipelines.quilt.design import Design
from rollforward.batches import BatchError, Completed, TaskBatch, current_member
from rollforward.datastore import transact
from rollforward.datastore.versions import insert_all
from rollforward.runtime import Clients, naive_utc
from rollforward.tasks import Task, task
from rollforward.tasks.attempts import current_task

MAX_QUILTS = 40
DELIVERIES_KNOWN_FOR_S = 3600


@dataclass(frozen=True)
class Paint:
    """A square to paint, and the least time that it takes."""

    quilt: Annotated[str, pydantic.Field(min_length=32, max_length=32)]
    number: Annotated[int, pydantic.Field(ge=0, lt=10_000)]
    pace_ms: Annotated[int, pydantic.Field(ge=0, le=5_000)]


@dataclass(frozen=True)
class Sew:
    """A piece of a quilt to paint."""

    quilt: Annotated[str, pydantic.Field(min_length=32, max_length=32)]
    piece: Annotated[int, pydantic.Field(ge=0, lt=4)]


class GoneQuiltError(LookupError):
    """A quilt of this id existed, and was deleted to make room for newer ones."""


def topic_of(quilt: str) -> str:
    """Return the topic that the pages of a quilt watch."""
    return f"quilt:{quilt}"


# Make


def make(clients: Clients, quilt: str, design: Design) -> bool:
    """Make a quilt and begin to paint it, once for its id; return whether it is new.

    Raises:
        GoneQuiltError: it existed, and is deleted. Its batch would paint nothing.
    """

    def body() -> bool:
        if quilt_key(quilt).get() is not None:
            return False
        if not _populate(clients, quilt, design):
            raise GoneQuiltError(quilt)
        _row(clients, quilt, design).put()
        return True

    is_new = transact(body)
    if is_new:
        _delete_old()
    return is_new


def _populate(clients: Clients, quilt: str, design: Design) -> int:
    """Add the members of a quilt; return their number, 0 if its batch has them or is removed."""
    batch, work = SINGLE, list(_paints(quilt, design, 0))
    if design.pieces > 1:
        batch, work = WHOLE, [(sew, Sew(quilt, piece)) for piece in range(design.pieces)]
    try:
        return batch.populate_in_transaction(clients, quilt, work, seal=True)
    except BatchError:  # It has other members, or is removed.
        return 0


def design_of(row: Quilt) -> Design:
    """Return the design of a quilt."""
    return Design(row.edge, row.pieces, row.palette, row.pattern, row.pace_ms)


def _row(clients: Clients, quilt: str, design: Design) -> Quilt:
    return Quilt(
        key=quilt_key(quilt),
        created=naive_utc(clients.clock.now()),
        edge=design.edge,
        pieces=design.pieces,
        palette=design.palette,
        pattern=design.pattern,
        pace_ms=design.pace_ms,
    )


def _paints(quilt: str, design: Design, piece: int) -> Iterator[tuple[Task[Any], Any]]:
    for number in design.numbers(piece):
        yield paint, Paint(quilt, number, design.pace_ms)


def _delete_old() -> None:
    """Delete quilts beyond MAX_QUILTS, a few at a time: each new quilt makes room for one."""
    for row in newest_quilts().fetch(3, offset=MAX_QUILTS):
        ndb.delete_multi(list(rows_of(row.key.id(), design_of(row).count, row.pieces)))


# Paint


@task("/tasks/paint", queue="quilt")
def paint(clients: Clients, args: Paint) -> None:
    """Paint a square: insert its row. A painted square keeps its row."""
    begun = clients.clock.now()
    counter = f"{topic_of(args.quilt)}:{args.number}"
    deliveries = clients.cache.incr(counter, 1, DELIVERIES_KNOWN_FOR_S) or 1
    if args.pace_ms:
        clients.clock.sleep(args.pace_ms / 1000)
    painted_at = clients.clock.now()
    square = QuiltSquare(
        key=square_key(args.quilt, args.number),
        painted=naive_utc(painted_at),
        worker=os.getpid(),
        took_ms=round((painted_at - begun).total_seconds() * 1000),
        deliveries=deliveries,
        task=current_task(),
    )
    try:
        insert_all(clients.datastore, [square])
    except rpc_errors.AlreadyExists:
        return
    clients.publish(topic_of(args.quilt))


@task("/tasks/sew", queue="quilt")
def sew(clients: Clients, args: Sew) -> None:
    """Become the batch of a piece's squares."""
    row = quilt_key(args.quilt).get()
    if row is None:
        return  # It was deleted meanwhile, to make room for newer ones.
    batch = current_member().nest(PIECES, _paints(args.quilt, design_of(row), args.piece))
    QuiltPiece(key=piece_key(args.quilt, args.piece), batch=batch).put()
    clients.publish(topic_of(args.quilt))


@task("/tasks/quilt/finish", queue="quilt-ends")
def finish(clients: Clients, args: Completed) -> None:
    """Finish a quilt, once per completion of its batch."""

    def body() -> None:
        row = quilt_key(args.batch_id).get()
        if row is None or row.completion == args.idempotency_key:
            return
        row.finished, row.outcome = naive_utc(clients.clock.now()), args.outcome
        row.completion = args.idempotency_key
        row.put()

    transact(body)
    clients.publish(topic_of(args.batch_id))


SINGLE = TaskBatch("quilt", members=[paint], on_complete=finish)
PIECES = TaskBatch("quilt-pieces", members=[paint])
WHOLE = TaskBatch("quilt-whole", members=[sew], on_complete=finish)
BATCHES = (SINGLE, PIECES, WHOLE)
