"""Uploaded files, cut into chunks.

UploadChunk
    Key: "<upload id>:<number>", fixed width: a file is one key range in order.
    Queries: none; chunks are read by key.
    Growth: a row for each 64 KiB. `expires` is for a TTL policy (docs/howto/deploy.md);
    nothing depends on it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from google.cloud import ndb

CHUNK_BYTES = 65_536
# Of one commit: well below the 4 MiB that the emulators take.
CHUNKS_PER_PUT = 32
KEPT_FOR = datetime.timedelta(days=30)


class UploadChunk(ndb.Model):
    """64 KiB of a file; the last one is shorter."""

    content = ndb.BlobProperty(required=True)
    expires = ndb.DateTimeProperty(required=True)


def put_upload(upload_id: str, content: bytes, now: datetime.datetime) -> None:
    """Store a file; storing it again changes nothing."""
    chunks = [
        UploadChunk(
            id=_chunk_id(upload_id, start // CHUNK_BYTES),
            content=content[start : start + CHUNK_BYTES],
            expires=now + KEPT_FOR,
        )
        for start in range(0, len(content), CHUNK_BYTES)
    ]
    for start in range(0, len(chunks), CHUNKS_PER_PUT):
        ndb.put_multi(chunks[start : start + CHUNKS_PER_PUT])


def read_upload(upload_id: str, offset: int) -> Iterator[bytes]:
    """Yield a file's content from an offset on, chunk by chunk, as long as it is asked for."""
    number, skipped = divmod(offset, CHUNK_BYTES)
    while chunk := UploadChunk.get_by_id(_chunk_id(upload_id, number)):
        yield chunk.content[skipped:]
        number, skipped = number + 1, 0


def _chunk_id(upload_id: str, number: int) -> str:
    return f"{upload_id}:{number:06d}"
