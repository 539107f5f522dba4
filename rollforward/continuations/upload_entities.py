"""Uploaded files, cut into chunks.

UploadChunk
    Key: "<upload id>:<number>", fixed width: a file is one key range in order.
    Queries: expires before now: what the sweep deletes. Single-property index.
    Growth: a row for each 64 KiB, for 30 days. A TTL policy on `expires` saves the sweep the work
    (docs/howto/deploy.md).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import refusing_key

CHUNK_BYTES = 65_536
# Of one commit: well below the 4 MiB that the emulators take.
CHUNKS_PER_PUT = 32
KEPT_FOR = datetime.timedelta(days=30)


class UploadGoneError(LookupError):
    """The rest of this file has been deleted."""


class UploadChunk(ndb.Model):
    """64 KiB of a file; the last one is shorter, if need be empty, so that the end is known."""

    content = ndb.BlobProperty(required=True)
    expires = ndb.DateTimeProperty(required=True)


def put_upload(upload_id: str, content: bytes, now_utc: datetime.datetime) -> None:
    """Store a file; storing it again changes nothing."""
    starts = range(0, len(content) + 1, CHUNK_BYTES)
    for index in range(0, len(starts), CHUNKS_PER_PUT):  # One commit's chunks at a time in memory.
        ndb.put_multi(
            [
                UploadChunk(
                    key=_chunk_key(upload_id, start // CHUNK_BYTES),
                    content=content[start : start + CHUNK_BYTES],
                    expires=now_utc + KEPT_FOR,
                )
                for start in starts[index : index + CHUNKS_PER_PUT]
            ]
        )


def read_upload(upload_id: str, offset: int) -> Iterator[bytes]:
    """Yield a file's content from an offset on, chunk by chunk, as long as it is asked for.

    Raises:
        UploadGoneError: the file does not exist, or it was deleted from here on.
    """
    number, skipped = divmod(offset, CHUNK_BYTES)
    is_last = False
    while not is_last:
        chunk = _chunk_key(upload_id, number).get()
        if chunk is None:
            raise UploadGoneError(f"upload {upload_id} has no chunk {number}")
        is_last = len(chunk.content) < CHUNK_BYTES
        yield chunk.content[skipped:]
        number, skipped = number + 1, 0


def expired_chunks(now_utc: datetime.datetime) -> Any:
    """Return the query for the chunks that may be deleted, the oldest first."""
    return UploadChunk.query(UploadChunk.expires < now_utc).order(UploadChunk.expires)


def _chunk_key(upload_id: str, number: int) -> Any:
    return refusing_key("an upload", UploadChunk, f"{upload_id}:{number:06d}")
