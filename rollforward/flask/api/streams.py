"""Streams over HTTP, for a program in any language: push records, read status and states.

A caller proves itself by an OIDC token of the app's service account, as the task queue does.
Mounted where an app has a pipeline. JSON in, JSON out; errors as of RFC 9457.
"""

from __future__ import annotations

import binascii
import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import pydantic
from flask import Blueprint, Flask, Response, jsonify, request
from flask.typing import ResponseReturnValue

from rollforward.flask.api.json_requests import reject, typed_body
from rollforward.flask.context import clients, find_part, mount_for
from rollforward.flask.guards.auth import workers_only
from rollforward.flask.guards.fields import limits
from rollforward.look.lists import parse_integer
from rollforward.streams import Pipeline, PushedRecord
from rollforward.streams.model.codecs import MAX_NAME_CHARS, Encoded
from rollforward.streams.model.errors import (
    BackpressureError,
    BadRecordError,
    PartlyAcceptedError,
    TopologyError,
    UnknownStreamError,
)
from rollforward.streams.model.records import MAX_KEY_BYTES, MAX_VALUE_BYTES
from rollforward.streams.pattern import Streams
from rollforward.tasks import Retry, Unavailable

bp = Blueprint("rollforward_streams", __name__, url_prefix="/api/v1/streams")

MAX_BODY_BYTES = 4_000_000
MAX_RECORDS = 500
MAX_STATES, DEFAULT_STATES = 1_000, 100

MISSING: Any = object()

_STRICT: pydantic.ConfigDict = {"extra": "forbid"}


@dataclass(frozen=True)
class NewRecord:
    """A record: its value as JSON, or `data`, the bytes of the stream's codec in base64."""

    __pydantic_config__ = _STRICT
    id: Annotated[str, pydantic.Field(min_length=1, max_length=200)]
    timestamp_ms: int
    value: Any = field(default_factory=lambda: MISSING)  # A schema has no default for it.
    data: Annotated[str, pydantic.Field(max_length=MAX_VALUE_BYTES)] | None = None
    # The name of the codec of `data`; empty: the first one of the stream.
    codec: Annotated[str, pydantic.Field(max_length=MAX_NAME_CHARS)] = ""


@dataclass(frozen=True)
class NewRecords:
    __pydantic_config__ = _STRICT
    records: Annotated[list[NewRecord], pydantic.Field(max_length=MAX_RECORDS)]
    process: Annotated[str, pydantic.Field(max_length=60)] = ""
    watermark: int | None = None


@dataclass(frozen=True)
class WantedVersion:
    __pydantic_config__ = _STRICT
    version: Annotated[int, pydantic.Field(ge=1)] | None = None


def register(app: Flask) -> None:
    """Mount the API, if the registry of the app has pipelines."""
    mount_for(app, bp, Streams.name)


@bp.post("/<pipeline>/<stream>")
@workers_only
def push(pipeline: str, stream: str) -> ResponseReturnValue:
    """Accept records; they are durable when this answers. It may be repeated, by their ids."""
    target = _pipeline(pipeline)
    asked = typed_body(NewRecords, MAX_BODY_BYTES)
    records = [
        PushedRecord(record.id, _value(number, record), record.timestamp_ms)
        for number, record in enumerate(asked.records)
    ]
    try:
        accepted = target.push(
            clients(), stream, records, process=asked.process, watermark=asked.watermark
        )
    except UnknownStreamError as error:
        reject(404, f"{error}.")
    except PartlyAcceptedError as error:
        reject(400, f"A part was accepted, and the rest was not: {error}.")
    except BadRecordError as error:
        reject(400, f"No record was accepted: {error}.")
    except BackpressureError as error:
        reject(429, f"No record was accepted: {error}. Send the same records again.")
    except (Retry, Unavailable):
        reject(503, "The outcome is unknown: send the same records again.")
    return jsonify(records=accepted.records, late=accepted.late, watermark=accepted.watermark), 202


def _value(number: int, record: NewRecord) -> Any:
    """Return the value of a record; end the request with 400 if it has none, or two."""
    if (record.value is MISSING) == (record.data is None):
        reject(400, f"records.{number}: give either value or data.")
    if record.data is None:
        return record.value
    try:
        return Encoded(binascii.a2b_base64(record.data, strict_mode=True), record.codec)
    except ValueError as error:
        reject(400, f"records.{number}.data: must be base64: {error}.")


@bp.get("/<pipeline>")
@workers_only
def status(pipeline: str) -> ResponseReturnValue:
    """Return the progress of a pipeline: its watermarks, its backlog and its counts."""
    progress = _pipeline(pipeline).status(clients())
    return jsonify(
        computations={name: asdict(part) for name, part in progress.computations.items()},
        sources={name: asdict(part) for name, part in progress.sources.items()},
    )


@bp.get("/<pipeline>/<computation>/states")
@limits(key=MAX_KEY_BYTES)
@workers_only
def states(pipeline: str, computation: str) -> ResponseReturnValue:
    """Return the state of a key (`key`), open windows included; or of the first keys (`limit`)."""
    target, key = _pipeline(pipeline), request.args.get("key")
    limit = parse_integer(request.args.get("limit", str(DEFAULT_STATES)), MAX_STATES)
    if limit is None:
        reject(400, f"limit must be a whole number from 1 to {MAX_STATES}.")
    try:
        if key is None:
            by_key = dict(itertools.islice(target.states(clients(), computation), limit))
        else:
            by_key = {key: target.state(clients(), computation, key)}
    except UnknownStreamError as error:
        reject(404, f"{error}.")
    except Retry:
        reject(503, "This instance of the app does not have the code: try again.")
    try:
        return jsonify(states=by_key)
    except (TypeError, ValueError):
        reject(409, f"The codec of {computation} reads states that are not JSON.")


@bp.get("/<pipeline>/topology")
@workers_only
def topology(pipeline: str) -> ResponseReturnValue:
    """Return the running computations with their versions, and the progress of changes."""
    return _topology(_pipeline(pipeline))


def _topology(pipeline: Pipeline) -> Response:
    running = pipeline.topology(clients())
    return jsonify(
        computations={
            name: asdict(part) | {"is_changing": part.is_changing}
            for name, part in running.parts.items()
        },
        changes=[change._asdict() for change in running.changes],
    )


@bp.put("/<pipeline>/topology/<computation>")
@workers_only
def run_version(pipeline: str, computation: str) -> ResponseReturnValue:
    """Attach a version of a computation, or replace the running version by it.

    It may be repeated. When this answers the change has begun; it continues in the background.
    """
    target, version = _pipeline(pipeline), typed_body(WantedVersion, MAX_BODY_BYTES).version
    with _rejections():
        part = target.topology(clients()).parts.get(computation)
        begin = target.attach if part is None or part.version is None else target.replace
        begin(clients(), computation, version=version)
    return _topology(target), 202


@bp.delete("/<pipeline>/topology/<computation>")
@workers_only
def detach(pipeline: str, computation: str) -> ResponseReturnValue:
    """Detach a computation after it has drained its backlog, or at once (`discard=true`)."""
    target, discard = _pipeline(pipeline), request.args.get("discard", "false")
    if discard not in ("true", "false"):
        reject(400, "discard must be true or false.")
    with _rejections():
        target.detach(clients(), computation, discard=discard == "true")
    return _topology(target), 202


@contextlib.contextmanager
def _rejections() -> Iterator[None]:
    """End the request with the reason why a change of a topology was refused."""
    try:
        yield
    except UnknownStreamError as error:
        reject(404, f"{error}.")
    except TopologyError as error:
        reject(409, f"Nothing was changed: {error}.")
    except (Retry, Unavailable):
        reject(503, "The outcome is unknown: ask for the change again.")


def _pipeline(name: str) -> Pipeline:
    """Return a pipeline of the app; end the request with 404 if it has none of this name."""
    pipeline: Pipeline = find_part(Streams.name, name) or reject(404, "Pipeline not found.")
    return pipeline
