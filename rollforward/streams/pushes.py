"""Pushes: their records, and the commits that pushes of one process to one source share."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic

from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.group_commit import GroupCommit
from rollforward.runtime.texts import has_unpaired_surrogate
from rollforward.streams.driver import Engine, run_steps
from rollforward.streams.exchange.ingest import (
    encoded_record,
    inbound_record,
    ingest,
    ingest_group,
)
from rollforward.streams.exchange.ingest_attempt import IngestRequest, IngestResult
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.model.bundle import REPLAY
from rollforward.streams.model.errors import (
    BackpressureError,
    BadRecordError,
    MissingCodeError,
    UnknownStreamError,
)
from rollforward.streams.model.json_text import decoded
from rollforward.streams.model.records import encoded_bytes
from rollforward.streams.model.sources import PushSource
from rollforward.streams.storage.remote_calls import Key, RepeatedError
from rollforward.streams.storage.schema import OUTBOX
from rollforward.streams.stream_tasks import TICKS_QUEUE, check_known
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import OtherVersionError, Retry
from rollforward.tasks.waits import MIN_VERSION_WAIT_S

log = logging.getLogger(__name__)

MAX_PUSHED = 500
MAX_PUSHED_BYTES = 2_000_000
MAX_ID_CHARS = 200
# Of a commit that pushes share, and how long one waits for it before it commits by itself.
MAX_SHARED, MAX_WAIT_S = 20, 10.0


@dataclass(frozen=True)
class PushedRecord:
    """A record to push: its own id, its value, and its event time.

    `value`: an `Encoded` has the bytes of a codec of the stream.
    """

    id: str
    value: Any
    timestamp_ms: int


@dataclass(frozen=True)
class Accepted:
    """Result of a push: the number of records, of late ones, and the source's watermark."""

    records: int
    late: int
    watermark: int


def check_push(pipeline: Declaration, stream: str, process: str) -> None:
    """Check that a process of a source pushes to it.

    Raises:
        BadRecordError, UnknownStreamError: the source is pulled, or unknown, or the process is.
    """
    if not isinstance(pipeline.source(stream), PushSource):
        raise BadRecordError(f"{stream} is a pull source: no record can be pushed to it")
    pipeline.check_process(stream, process)


def check_pushed(records: Sequence[PushedRecord]) -> None:
    """Check the number of pushed records, and their ids.

    Raises:
        BadRecordError: there are too many, or an id is invalid.
    """
    if len(records) > MAX_PUSHED:
        raise BadRecordError(f"a push must have at most {MAX_PUSHED} records, got {len(records)}")
    for record in records:
        if not isinstance(record, PushedRecord):
            raise BadRecordError(
                f"a push takes PushedRecord(id, value, timestamp_ms), got {record!r:.100}"
            )
        if not isinstance(record.id, str) or not 0 < len(record.id) <= MAX_ID_CHARS:
            raise BadRecordError(
                f"an id must have 1 to {MAX_ID_CHARS} characters, got {record.id!r:.100}"
            )
        if REPLAY in record.id:
            raise BadRecordError(f"an id must not have the character 0, got {record.id!r:.100}")
        encoded_bytes("an id", record.id)


def ingest_push(clients: Clients, pipeline: Declaration, request: IngestRequest) -> IngestResult:
    """Ingest a push, in a commit that other pushes may share.

    Pushes to one source write the same row, so pushes that overlap would make each other fail. A
    source with weak readers is an exception: their hooks and effects come before the commit, and a
    push that one of them makes to the same source would wait for the commit that waits for it.

    Raises: as `Engine.run`, and the errors of the request.
    """
    if any(code.weak and request.stream in code.inputs for code in pipeline.versions.values()):
        return run_steps(clients, pipeline, ingest, request)
    return _group_of(clients, pipeline, request.stream, request.process)(request)


def _group_of(
    clients: Clients, pipeline: Declaration, stream: str, process: str
) -> GroupCommit[IngestRequest, IngestResult]:
    """Return the group commit of the pushes to one source, always the same."""

    def commit(requests: Sequence[IngestRequest]) -> Sequence[IngestResult | BaseException]:
        if len(requests) > 1 and (results := run_steps(clients, pipeline, ingest_group, requests)):
            return results
        return [_push_single(clients, pipeline, request) for request in requests]

    return clients.process_state.get_or_create(
        f"streams pushes {pipeline.name} {stream} {process}",
        lambda: GroupCommit(
            commit,
            max_calls=MAX_SHARED,
            max_bytes=MAX_PUSHED,
            size=lambda request: len(request.records),
            max_wait_s=MAX_WAIT_S,
        ),
    )


def _push_single(
    clients: Clients, pipeline: Declaration, request: IngestRequest
) -> IngestResult | BaseException:
    """Return the result of a push in commits of its own, or its error."""
    try:
        return run_steps(clients, pipeline, ingest, request)
    except Exception as error:
        return error


@dataclass(frozen=True)
class PushLater:
    """A record that a transaction has pushed."""

    stream: Annotated[str, pydantic.Field(max_length=70)]
    process: Annotated[str, pydantic.Field(max_length=70)]
    id: Annotated[str, pydantic.Field(max_length=MAX_ID_CHARS)]
    value: Any
    timestamp_ms: int
    unacked: str = ""  # A row of the outbox; empty in tasks of an earlier version of the code.
    # The value is the text of one that has a codec, or that is no whole characters.
    is_encoded: bool = False


@functools.cache
def push_task(pipeline: Declaration) -> Task[PushLater]:
    """Return the task that ingests the pushes of transactions, always the same."""

    def push(clients: Clients, args: PushLater) -> None:
        check_known(pipeline, args.stream, args.process)
        check_push(pipeline, args.stream, args.process)
        engine = Engine(clients, pipeline)
        try:
            record = (encoded_record if args.is_encoded else inbound_record)(
                engine.environment, args.stream, args.value, args.timestamp_ms, args.id
            )
        except MissingCodeError as error:
            raise Retry(str(error), after_s=MIN_VERSION_WAIT_S) from error
        receipt = Key(OUTBOX, args.unacked) if args.unacked else None
        request = IngestRequest(args.stream, args.process, [record], receipt=receipt)
        try:
            engine.run(ingest(engine.environment, request))
        except BackpressureError as error:
            raise Retry(str(error)) from error
        except UnknownStreamError as error:  # Its readers are on standby, or were detached.
            raise OtherVersionError(f"{pipeline.name}: {error}") from error
        except RepeatedError:
            log.info("%s was accepted before", args.id)

    path = f"/tasks/streams/{pipeline.name}/push"
    return Task(path, TICKS_QUEUE, PushLater, push)


def has_half_character(text: str) -> bool:
    """Return whether a value as JSON has an unpaired surrogate, which no task's arguments have."""
    is_possible = r"\ud" in text
    return is_possible and has_unpaired_surrogate(json.dumps(decoded(text), ensure_ascii=False))
