"""Pushes: their records, and the commits that pushes of one process to one source share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.group_commit import GroupCommit
from rollforward.streams.driver import run_steps
from rollforward.streams.exchange.ingest import ingest, ingest_group
from rollforward.streams.exchange.ingest_attempt import IngestRequest, IngestResult
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.model.bundle import REPLAY
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.records import encoded_bytes

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
