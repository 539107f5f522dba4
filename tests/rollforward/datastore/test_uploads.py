"""Uploads: the bytes that went in come out, from any place."""

from __future__ import annotations

import itertools

import pytest
from google.cloud import ndb

from rollforward.continuations.upload_entities import (
    CHUNK_BYTES,
    CHUNKS_PER_PUT,
    UploadChunk,
    UploadGoneError,
    put_upload,
    read_upload,
)
from rollforward.runtime import naive_utc
from tests.infra.world import World

pytestmark = [pytest.mark.parametrize("services", ["datastore"], indirect=True), pytest.mark.fast]


@pytest.mark.parametrize(
    "size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]
)
def test_a_file_is_read_from_any_offset(world: World, size: int) -> None:
    """Each offset, at the borders of chunks too, gives the rest of the file and no more."""
    content = bytes(i * 31 % 251 for i in range(size))
    with world.context():
        put_upload("u", content, naive_utc(world.clock.now()))

        for offset in {0, 1, size // 2, CHUNK_BYTES - 1, CHUNK_BYTES, size - 1, size}:
            if offset > size:
                continue
            assert b"".join(read_upload("u", offset)) == content[offset:]


def test_a_file_is_stored_in_commits_that_the_service_takes(world: World) -> None:
    """More chunks than fit in one commit go in several; storing it again changes nothing."""
    content = b"x" * (CHUNK_BYTES * CHUNKS_PER_PUT + 1)
    with world.clients.context(), world.plan.watched():
        put_upload("u", content, naive_utc(world.clock.now()))
        put_upload("u", content, naive_utc(world.clock.now()))

        assert world.plan.calls == ["Commit"] * 4
        keys = UploadChunk.query().fetch(keys_only=True)
        assert len(keys) == CHUNKS_PER_PUT + 1


def test_files_do_not_run_into_each_other(world: World) -> None:
    """A file ends with its own chunks, even if the next one has a similar name."""
    with world.context():
        put_upload("u", b"first", naive_utc(world.clock.now()))
        put_upload("u:000001", b"second", naive_utc(world.clock.now()))

        assert b"".join(read_upload("u", 0)) == b"first"


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_file_that_was_deleted_does_not_look_like_a_short_one(world: World, gone: int) -> None:
    """Chunks expire one by one: a reader gets an error at the gap, and never reads behind it."""
    content = b"x" * (2 * CHUNK_BYTES)
    with world.context():
        put_upload("u", content, naive_utc(world.clock.now()))
        ndb.Key(UploadChunk, f"u:{gone:06d}").delete()

        chunks = read_upload("u", 0)
        read = b"".join(itertools.islice(chunks, gone))
        with pytest.raises(UploadGoneError):
            next(chunks)

    assert read == content[: gone * CHUNK_BYTES]
