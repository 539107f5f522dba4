"""The file of an export: lines of JSON, with a first and a last line by which it is checked.

    {"export": 1, "id": ..., "pipeline": ..., "watermarks": {...}, "sources": [...], ...}
    {"computation": "hits", "key": "/", "text": ..., "timers": {...}, "expires": ..., "version": 1}
    {"computation": "hits", "key": "/", "stream": "requests", "id": ..., "text": ...,
     "timestamp_ms": ..., "late_at": 0}
    {"end": 2, "digest": ...}

The second line is the state of a key, the third a record that waits for its computation. The last
line has the number of lines between, and a digest of all earlier ones. Equal cuts make equal files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.model.errors import StreamError
from rollforward.streams.model.json_text import encoder
from rollforward.streams.model.key_state import NOTHING, KeyState, SetTimer
from rollforward.streams.model.sink import Sink
from rollforward.streams.model.sources import PullSource

FORMAT = 1
_ID = re.compile(r"[A-Za-z0-9_-]{1,60}")
_encode = encoder(allow_nan=False)
# A JSON object.
Row = dict[str, Any]


class IncompleteExportError(StreamError, ValueError):
    """The file is not a whole export: a part of it is missing, or was changed."""


@dataclass(frozen=True)
class Header:
    """The first line of an export: facts about the whole pipeline.

    Attributes:
        id: The id of the cut: exports of one stop have one id.
        watermarks: By computation, in ms of event time: the hooks have seen no later ones.
        sources: Stream, process, watermark and position of each process of a source.
        versions: By computation, the versions that may have written its states.
        percentiles: The watermarks of computations that have asked for a percentile.
        due: Computations with timers that the watermark has passed and that have not fired.
        codecs: The names of the codecs that records which wait may have.
        numbers: By "<stream>:<partition>", the number of the next record of a pull source, from
            which its id at a weak sink follows.
    """

    id: str
    pipeline: str
    watermarks: Mapping[str, int]
    sources: Sequence[Sequence[Any]]
    versions: Mapping[str, Sequence[int]]
    percentiles: Mapping[str, int] = field(default_factory=dict)
    due: Sequence[str] = ()
    codecs: Sequence[str] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    export: int = FORMAT

    def floor(self, stream: str) -> int:
        """Return the time before which a record of a source is late, in ms of event time."""
        return min((at for name, _, at, _ in self.sources if name == stream), default=0)

    def position(self, stream: str, process: str) -> Any:
        """Return the position at which to continue reading a partition; None: its beginning."""
        return next((at for *place, _, at in self.sources if place == [stream, process]), None)


def read_header(path: str | os.PathLike[str]) -> Header:
    """Check a whole file, and return its header.

    Raises:
        IncompleteExportError: it is not a whole export.
    """
    with Path(path).open("rb") as lines:
        return checked_header(lines, path)


def checked_header(lines: Iterable[bytes], path: str | os.PathLike[str]) -> Header:
    """Do the same with the lines of a file that some other file system has.

    Raises:
        IncompleteExportError: they are not a whole export.
    """
    header: Header | None = None
    for line in _checked(lines, path):
        header = header or line
    assert isinstance(header, Header)
    return header


def read_lines(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Yield the header of a file, then each row.

    Raises:
        IncompleteExportError: it is not a whole export; at the latest behind the last row.
    """
    with Path(path).open("rb") as lines:
        yield from _checked(lines, path)


def _checked(lines: Iterable[bytes], path: str | os.PathLike[str]) -> Iterator[Any]:
    digest, count, is_whole = _new_digest(), -1, False
    for line in lines:
        row = _row_of(line)
        if is_whole:
            raise IncompleteExportError(f"{path} goes on behind its end")
        if "end" in row:
            is_whole = row == {"end": count, "digest": digest.hexdigest()}
            if not is_whole:
                raise IncompleteExportError(f"{path} is not what was written")
            continue
        if (count < 0) != (row.get("export") == FORMAT):
            raise IncompleteExportError(
                f"{path} has no header of format {FORMAT} as its first line"
            )
        digest.update(line)
        count += 1
        yield row if count else Header(**row)
    if not is_whole:
        raise IncompleteExportError(f"{path} ends before its last line")


def write_file(path: str | os.PathLike[str], header: Header, rows: Iterable[Row]) -> None:
    """Write an export; until it is whole, the file has another name."""
    digest, count = _new_digest(), 0
    # Of chance: processes of two containers may have one number, and write to one volume.
    part = Path(f"{os.fspath(path)}.{secrets.token_hex(8)}.part")
    try:
        with part.open("wb") as file:
            file.write(first := _line(_header_row(header)))
            digest.update(first)
            for count, row in enumerate(rows, 1):  # noqa: B007 - It is used behind the loop.
                file.write(line := _line(row))
                digest.update(line)
            file.write(_line({"end": count, "digest": digest.hexdigest()}))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def seal_to(
    path: str | os.PathLike[str],
    pipeline: Declaration,
    rows: Iterable[Row],
    watermark: int,
    *,
    id_: str,
    positions: Mapping[tuple[str, str], Any] | None = None,
) -> Header:
    """Write the results of another engine as an export.

    Args:
        rows: Rows of `Outputs.states` and of `Outputs.after`, in any order.
        watermark: At which that engine ended, as `ends_at`.
        id_: Names the cut: an import of the same id is one import.
        positions: By stream and partition, where to continue reading a pull source.

    Raises:
        ValueError: a pull source has no position, the pipeline lacks the computation of a row, or
            the id has characters besides letters, digits, "_" and "-". No file is written.
    """
    if not _ID.fullmatch(id_):
        raise ValueError(f"an id must have up to 60 letters, digits, '_' and '-', got {id_!r}")
    positions = positions or {}
    places = [(name, one) for name, source in pipeline.sources.items() for one in source.processes]
    pulled = [name for name, source in pipeline.sources.items() if isinstance(source, PullSource)]
    if missing := [place for place in places if place[0] in pulled and place not in positions]:
        raise ValueError(f"positions must have the partitions {missing}, or they are read again")
    codes = pipeline.computations.values()
    header = Header(
        id_,
        pipeline.name,
        watermarks={code.name: watermark for code in codes},
        sources=[[*place, watermark, positions.get(place)] for place in places],
        versions={code.name: [code.version] for code in codes if not isinstance(code, Sink)},
    )
    write_file(path, header, _checked_rows(pipeline, rows))
    return header


def _checked_rows(pipeline: Declaration, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows; an import would have begun when it comes to one that it cannot write."""
    for row in rows:
        if row["computation"] not in pipeline.computations:
            raise ValueError(f"{pipeline.name} has no computation {row['computation']!r} of a row")
        yield row


def state_row(state: KeyState) -> Row:
    """Return a state as JSON: {"text", "timers": {tag: [at, clock, hold, late]}, ...}."""
    text, timers, expires, version = state[:4]
    return {"text": text, "timers": timers, "expires": expires, "version": version}


def state_of(row: Mapping[str, Any]) -> KeyState:
    """Return the state of a row of `state_row`."""
    timers = {tag: SetTimer(*timer) for tag, timer in row["timers"].items()}
    state = KeyState(row["text"], timers, row["expires"], row["version"])
    return NOTHING if state.is_empty else state


def is_state(row: Mapping[str, Any]) -> bool:
    """Return whether a row is the state of a key; otherwise it is a record that waits."""
    return "stream" not in row


def _header_row(header: Header) -> Row:
    """Return a header as JSON, which earlier code reads if there are no codecs and numbers."""
    row = asdict(header)
    for name in ("codecs", "numbers"):
        if not row[name]:
            del row[name]
    return row


def _new_digest() -> Any:
    return hashlib.blake2b(digest_size=16)


def _line(row: Mapping[str, Any]) -> bytes:
    return f"{_encode(row)}\n".encode()


def _row_of(line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise IncompleteExportError(f"a line is no JSON: {line[:100]!r}") from error
    if not isinstance(row, dict) or not line.endswith(b"\n"):
        raise IncompleteExportError(f"a line is not whole: {line[:100]!r}")
    return row
