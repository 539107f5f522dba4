"""Moves with a part of the protocol left out: what their tests have to notice."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.streams.moving import file_format, importing, stopping
from rollforward.streams.storage.schema import Head


def rows_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """Who has read the earlier head may commit behind the stop."""

    def fence(environment: Any, head: Head) -> Any:
        yield from ()

    patch.setattr(stopping, "_fence", fence)


def chunks_have_names_of_chance(patch: pytest.MonkeyPatch) -> None:
    """A page that is repeated does not know its own chunks."""
    numbers = iter(range(10_000))
    real = importing.chunk_id

    def chunk_id(id_: str, *rest: Any) -> str:
        return real(f"{id_}-{next(numbers)}", *rest)

    patch.setattr(importing, "chunk_id", chunk_id)


def watermarks_stay_where_ticks_moved_them(patch: pytest.MonkeyPatch) -> None:
    """The last commit of an import leaves watermarks that were moved while holds were missing."""
    real = importing.with_watermarks

    def with_watermarks(head: Head, header: Any) -> Head:
        return real(head, header) if not head.topology or head.stopped else head

    patch.setattr(importing, "with_watermarks", with_watermarks)


def pages_do_not_look_at_the_head(patch: pytest.MonkeyPatch) -> None:
    """A page is written though the pipeline has begun to run."""
    patch.setattr(importing, "_is_open", lambda environment, head, header: True)


def digests_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A file is whole if its last line has the right number."""

    class Digest:
        def update(self, line: bytes) -> None:
            """Forget it."""

        def hexdigest(self) -> Any:
            return _Anything()

    patch.setattr(file_format, "_new_digest", Digest)


class _Anything(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True
