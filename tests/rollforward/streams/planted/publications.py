"""Publications with a part of them left out or turned round: what the schedules have to notice."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.streams.exchange import pulling
from rollforward.streams.publications import log, retention
from rollforward.streams.storage.schema import Names
from rollforward.streams.watermarks import cut_reader
from rollforward.streams.workers import sink_worker
from tests.rollforward.streams.scenarios.publishing import Publishing


def forgets_its_inbox(schedule: Publishing, patch: pytest.MonkeyPatch) -> None:
    """The published watermark passes what waits in the publication's inbox."""
    real = cut_reader._add_computation

    def add(cut: Any, name: str, *rest: Any) -> Any:
        chunks = real(cut, name, *rest)
        if name in cut.published:
            feeds = cut.plan.graph.upstream[name]
            cut.published[name] = min(rest[0][feed].reached for feed in feeds)
        return chunks

    patch.setattr(cut_reader, "_add_computation", add)


def reads_ahead(schedule: Publishing, patch: pytest.MonkeyPatch) -> None:
    """A read that does not come to the end of the log takes the watermark of its end."""
    patch.setattr(log, "MAX_ROWS", 1)
    real = log._entries

    def entries(rows: Any, place: Any) -> Any:
        head = schedule.publisher_judge.head
        for entry in real(rows, place):
            yield entry._replace(watermark=head.published.get("mid-log", 0))

    patch.setattr(log, "_entries", entries)


def reads_twice(schedule: Publishing, patch: pytest.MonkeyPatch) -> None:
    """A read begins with the last record of the one before."""
    real = Names.log_prefix

    def place(self: Names, publication: str, lo: int, created_in: int, number: int) -> str:
        return real(self, publication, lo, created_in, max(0, number - 1))

    patch.setattr(Names, "log_prefix", place)


def numbers_from_the_start(schedule: Publishing, patch: pytest.MonkeyPatch) -> None:
    """The numbers of a bundle do not go on from those of the interval."""
    real = log.log_rows

    def rows(names: Any, name: str, lo: int, interval: Any, *rest: Any) -> Any:
        return real(names, name, lo, interval._replace(records=interval.seq), *rest)

    patch.setattr(sink_worker, "log_rows", rows)


def deletes_unread(schedule: Publishing, patch: pytest.MonkeyPatch) -> None:
    """The sweep deletes what a subscriber has not read."""

    def nobody(*_: Any) -> Any:
        return []
        yield

    patch.setattr(retention, "subscribers", nobody)


def never_registers(schedule: Publishing, patch: pytest.MonkeyPatch) -> None:
    """A subscriber does not say that it reads."""

    def nothing(*_: Any) -> Any:
        return
        yield

    patch.setattr(pulling, "register", nothing)


VARIANTS = (
    forgets_its_inbox,
    reads_ahead,
    reads_twice,
    numbers_from_the_start,
    deletes_unread,
    never_registers,
)
